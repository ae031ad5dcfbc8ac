"""What all other packages use: settings, profiles, states, processes, file locks, redaction, tracing, error texts."""
