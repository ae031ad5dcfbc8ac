"""Diagnostics of ``hopsml doctor``: checks of this machine and cluster, with a remedy for each problem.

``facts.py`` and ``services.py`` are probes, each with a deadline. ``checks.py`` and ``cluster_checks.py`` evaluate
their facts (pure: facts in, a finding out). ``examination.py`` runs the probes in parallel so that no probe that hangs
can block the others.
"""

from hopsml.doctor.checks import Finding, Needs, Status
from hopsml.doctor.examination import Examination, examine

__all__ = ["Examination", "Finding", "Needs", "Status", "examine"]
