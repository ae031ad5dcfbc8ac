"""What all other packages use: settings, profiles, states, redaction, tracing, and texts of errors."""
