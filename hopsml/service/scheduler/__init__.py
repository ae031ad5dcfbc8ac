"""Gang scheduler of the job service, as pure code: callers provide the clock, the store and the cluster.

``scheduler.py`` is the state machine; ``benchmarks/scheduler_replay.py`` drives it with the jobs of a log.
"""
