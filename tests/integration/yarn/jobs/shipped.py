"""Program that prints, as JSON, the Python of driver and executor, and their paths of ``tiny_package``."""

import json

import tiny_package
from pyspark import SparkContext


def facts(_=None):
    import os
    import sys

    import tiny_package

    return {
        "value": tiny_package.VALUE,
        "file": tiny_package.__file__,
        "prefix": sys.prefix,
        "standard_library": os.__file__,
        "work": os.getcwd(),
    }


context = SparkContext(appName="shipped")
here, there = facts(), context.parallelize([0], 1).map(facts).collect()[0]
print(json.dumps({"module": tiny_package.__name__, "driver": here, "executor": there}), flush=True)
context.stop()
