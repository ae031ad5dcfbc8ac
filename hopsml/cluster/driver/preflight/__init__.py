"""What is looked at before a slot may train: ``measure`` and ``probe`` look, ``rules`` judge, ``gate`` lets through.

An agent measures itself once, beside its fork server's import. Members of one group that are neighbours in the ring
exchange some bytes once. With ``preflight="warn"`` what is found is noted and delays nothing; with "enforce" a run waits
for the figures, and a slot that fails is set aside with its figure and the rule.
"""
