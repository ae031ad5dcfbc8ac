"""State machines of a run's worker group and of the agent pool, without input or output; used in the driver."""
