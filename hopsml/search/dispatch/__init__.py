"""State machine of a search: assigns trials to slots, calls the algorithms, and writes the event log."""
