"""The table of features: what trains alike with one process and with several, what is refused, and why."""
