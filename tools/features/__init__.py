"""Table of framework features that give equal results with one process and several, or are refused, with the reason."""
