"""Cost model of training steps, choice of the fastest communication settings, and the record of that choice.

No side effects, except for the record.
"""
