"""``hopsml doctor``: what this machine or cluster can do, and what to do about what it cannot.

``facts.py`` and ``services.py`` probe (each probe with a deadline), ``checks.py`` and ``cluster_checks.py`` judge (pure:
facts in, a finding out), ``examination.py`` runs them side by side so that nothing that hangs can hang the doctor.
"""

from hopsml.doctor.examination import Examination, examine
from hopsml.doctor.finding import Finding, Needs, Status

__all__ = ["Examination", "Finding", "Needs", "Status", "examine"]
