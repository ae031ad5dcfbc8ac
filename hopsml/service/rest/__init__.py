"""HTTP server of the job service and of ``hopsml ui``: routes, middleware, and event streams."""
