"""State machine of a group whose members train together, of fixed size or elastic; ``machine.py`` has its transition table.

Each file uses those before it: ``state.py``, ``generations.py``, ``in_place.py``, ``health.py``, ``machine.py``.
"""
