"""Program of test_submit.py for spark-submit: an elastic group of one or two workers, for some seconds."""

import json

import hopsml


def train():
    import os
    import time

    worlds = []
    state = hopsml.elastic.State(worlds=worlds)
    for _ in state.resume(hopsml.elastic.Sampler(320, global_batch_size=8, seed=1, epochs=1)):
        time.sleep(0.25)
        state.worlds = [*state.worlds, int(os.environ["WORLD_SIZE"])]
        state.commit(every=1)
    return {"worlds": state.worlds, "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}


if __name__ == "__main__":
    result = hopsml.experiment.collective_all_reduce(train, min_workers=1, max_workers=2, progress=False)
    print(json.dumps(result.value))
