"""The job service: what a job is (``spec``), and what is handed to an engine to run it (``render``)."""
