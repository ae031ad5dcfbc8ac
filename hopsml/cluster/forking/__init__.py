"""Fork servers and zygotes, which fork processes with imported frameworks, and their clients."""
