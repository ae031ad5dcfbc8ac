"""The driver of a task: a script that runs its workers with hopsml's verbs.

It lies in a folder of its own, as Python looks for every module beside a script first.
"""

from pathlib import Path

SCRIPT = Path(__file__).with_name("hopsml_job_driver.py")
