"""Code that runs in an agent: the body of a Spark task, or a process on the driver's machine."""
