"""Spark job with a given end: `ok`, `raise`, `exit N`, or `sleep` until it is killed."""

import sys
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("outcome").getOrCreate()
total = spark.sparkContext.parallelize(range(100), 2).map(lambda n: n * n).sum()
print(f"TOTAL {total}", flush=True)
if sys.argv[1] == "raise":
    raise ValueError("told to fail")
if sys.argv[1] == "exit":
    sys.exit(int(sys.argv[2]))
if sys.argv[1] == "sleep":
    time.sleep(600)
spark.stop()
