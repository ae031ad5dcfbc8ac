"""How tasks of a job find one another: each worker says on the project's store where it listens, others look there.

What is here needs no extra: workers use it.
"""
