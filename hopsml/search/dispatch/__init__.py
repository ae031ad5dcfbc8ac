"""A search as a state machine: which trial begins where, what is told to the algorithms, what is written down."""
