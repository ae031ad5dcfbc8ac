"""What a step costs with so many workers, which settings are the best, and the record of that; pure but for the record."""
