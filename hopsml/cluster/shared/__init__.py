"""Code shared by driver, agents and workers: their messages, run specification, layout and process control."""
