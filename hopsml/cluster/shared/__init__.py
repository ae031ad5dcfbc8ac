"""What driver, agents and workers have in common: what they say to each other, and what is true everywhere."""
