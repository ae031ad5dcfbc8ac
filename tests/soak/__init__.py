"""Long runs of everything that lives long, and the judgement of what grows: ``make soak``."""
