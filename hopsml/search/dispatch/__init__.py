"""A search as a state machine: which trial runs where, what the algorithms are told, what the journal records."""
