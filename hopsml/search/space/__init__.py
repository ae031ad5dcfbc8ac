"""What may be tried: parameters, conditions, and configurations as text."""
