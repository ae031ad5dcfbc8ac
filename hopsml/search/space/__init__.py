"""Search space: parameters, conditions, and configurations as text."""
