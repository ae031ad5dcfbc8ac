"""A Spark job that ends as it is told: `ok`, `raise` or `exit N`. It counts on its executors first."""

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("outcome").getOrCreate()
total = spark.sparkContext.parallelize(range(100), 2).map(lambda n: n * n).sum()
print(f"TOTAL {total}", flush=True)
if sys.argv[1] == "raise":
    raise ValueError("told to fail")
if sys.argv[1] == "exit":
    sys.exit(int(sys.argv[2]))
spark.stop()
