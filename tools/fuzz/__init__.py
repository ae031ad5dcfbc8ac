"""Coverage-guided fuzzing of every reader of bytes that another process, user or server may have written."""
