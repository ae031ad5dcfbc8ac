"""Pure: what a run's group does next. In the driver."""
