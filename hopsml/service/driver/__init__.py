"""Driver of a task: a script that runs the task's workers with the verbs of hopsml.

The script is stored in a folder without other modules, because Python searches the folder of a script first.
"""

from pathlib import Path

SCRIPT = Path(__file__).with_name("hopsml_job_driver.py")
