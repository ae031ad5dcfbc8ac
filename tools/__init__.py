"""Programs of the project that ``make`` and CI call."""
