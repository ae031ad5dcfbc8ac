"""The job service: what is asked of a cluster, what of it runs when, and what a person is shown of both."""
