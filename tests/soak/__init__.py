"""Long runs of all long-lived processes, and detection of resources that grow with the work: ``make soak``."""
