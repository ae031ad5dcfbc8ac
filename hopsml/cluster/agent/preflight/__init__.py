"""What an agent measures of its slot before a run gets it."""
