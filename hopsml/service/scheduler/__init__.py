"""Which job runs when, and where: pure, the caller has the clock, the store and the cluster.

``scheduler.py`` is the state machine; ``replay.py`` drives it through the jobs of a log at the speed of the processor.
"""
