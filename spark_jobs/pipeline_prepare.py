"""Step 1 of airflow_dags/digits_pipeline.py: write scikit-learn's digits as Parquet for training and test."""

from hopsml import experiment


def main():
    """Write the digits as a recorded run, with the number of rows of each part."""
    from pyspark.sql import SparkSession
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = [
        (index, image.tolist(), int(label)) for index, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    spark = SparkSession.builder.getOrCreate()
    digits = spark.createDataFrame(rows, "id int, image array<float>, label int").selectExpr(
        "id",
        "transform(image, pixel -> float(pixel / 16)) as image",
        "label",
        "if(pmod(hash(id), 5) = 0, 'test', 'train') as part",
    )
    with experiment.recorded("digits-data") as run:
        digits.coalesce(2).write.partitionBy("part").parquet(run.path("data"))
        counts = spark.read.parquet(run.path("data")).groupBy("part").count().collect()
        run.metrics.update({f"{row['part']}_rows": row["count"] for row in counts})
    print(run.json())


if __name__ == "__main__":
    main()
