"""Spark application that prints, waits for a file, prints again, and then succeeds or raises: `ok` or `raise`.

gate.py FILE ok
"""

import os
import sys
import time

from pyspark import SparkContext

context = SparkContext(appName="gate")
print("before the gate: äöü", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("behind the gate, no newline", end="", flush=True)
if sys.argv[2] == "raise":
    raise ValueError("told to fail")
context.stop()
