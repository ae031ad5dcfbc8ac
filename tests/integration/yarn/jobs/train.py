"""Program of test_yarn_jobs.py for spark-submit: a group of two whose second member follows the argument."""

import sys

import hopsml


def train(how):
    import json
    import os
    import sys
    import time

    task = json.loads(os.environ["TF_CONFIG"])
    print("task", task["task"], "GPU", os.environ["CUDA_VISIBLE_DEVICES"])
    if how == "hang" or (how != "succeed" and task["task"]["type"] == "chief"):
        time.sleep(600)
    if how == "raise":
        raise ValueError("rank 1 does not like its data")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(1)
    return {"tasks": sum(map(len, task["cluster"].values()))}


if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, args={"how": sys.argv[1]}, num_workers=2)
    print(result.summary())
