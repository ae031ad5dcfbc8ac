"""Diagnostics of ``hopsml doctor``: checks of this machine and cluster, with a remedy for each problem.

``facts.py`` has probes, each with a deadline, ``checks.py`` the evaluation of their facts (pure: facts in, a finding
out), ``kerberos.py`` both for Kerberos. ``examination.py`` runs the probes in parallel so that no probe that hangs can
block the others, and evaluates those of services.
"""

from hopsml.doctor.checks import Finding, Needs, Status
from hopsml.doctor.examination import Examination, examine

__all__ = ["Examination", "Finding", "Needs", "Status", "examine"]
