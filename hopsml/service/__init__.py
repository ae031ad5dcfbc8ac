"""The job service: what is asked of a cluster, what of it runs when, and what a person is shown of both.

What is here needs the extra ``service``, but for ``scheduler``; importing ``hopsml`` imports nothing of it.
"""
