"""Pre-flight check of slots before they train: ``gate`` decides by ``rules`` on agents' figures.

An agent measures its slot once, while its fork server imports modules. Members of one group that are neighbours in the
ring exchange some bytes once. With ``preflight="warn"`` findings are noted and delay nothing; with "enforce" a run
waits for the figures, and a slot that fails is excluded, with a note of its figure and the rule.
"""
