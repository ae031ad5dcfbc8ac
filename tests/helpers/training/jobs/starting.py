"""Jobs on a group's start and end: arguments, a late call, a missing leader, a lost peer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import current
from hopsml.errors import HopsmlError


def refusals() -> dict[str, Any]:
    """Return the errors of one process that claims to be rank 1 of 2, whose leader never listens."""
    from hopsml.training.tensorflow import setup

    own = json.loads(os.environ["TF_CONFIG"]) if "TF_CONFIG" in os.environ else {}
    assert not own, "started without a group"
    found = {
        name: _refused(**{name: value})
        for name, value in {
            "merge_scope": 0,
            "implementation": "mpi",
            "timeout_s": -1,
            "heartbeat_timeout_s": 0.1,
            "ring_order": [0, 1],
        }.items()
    }
    cluster = {"worker": ["127.0.0.1:9", "127.0.0.1:10"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    setup.LEADER_TIMEOUT_S = 0.2
    found["no leader"] = _refused()
    import tensorflow as tf

    tf.constant(1.0) + 1.0
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    found["late"] = _refused()
    return found


def _refused(**arguments: Any) -> list[str]:
    try:
        hopsml.tensorflow.strategy(**arguments)
    except HopsmlError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def reduce_until_a_peer_is_lost(**settings: Any) -> dict[str, Any]:
    """Reduce until a peer is lost, and report the error. Rank 0 starts after rank 1, which must wait for it."""
    context = current()
    assert context is not None
    folder = Path(context.run_url)
    import tensorflow as tf

    if context.is_chief:
        while not (folder / "rank-1-came").exists():
            time.sleep(0.01)
        (folder / "leader-began").write_text(str(time.monotonic()))
    else:
        (folder / "rank-1-came").touch()
    strategy = hopsml.tensorflow.strategy(**settings)
    built = time.monotonic()
    began = float((folder / "leader-began").read_text())

    @tf.function
    def step(tensors: Any) -> Any:
        def reduce(tensors: Any) -> Any:
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce("SUM", [tensor * 2.0 for tensor in tensors])

        return strategy.run(reduce, args=(tensors,))

    tensors = [tf.ones((100,)), tf.ones((10,))]
    steps = 0
    try:
        while True:
            step(tensors)
            steps += 1
            if steps == 3:
                (folder / f"stepping-{context.rank}").touch()
    except tf.errors.OpError as error:
        seen = type(error).__name__
    (folder / "seen.tmp").write_text(json.dumps({"error": seen, "built_after_leader": built >= began}))
    (folder / "seen.tmp").rename(folder / "seen")
    # TensorFlow's own shutdown would wait for the lost peer.
    os._exit(0)


def gradients_applied() -> dict[str, Any]:
    """Return the reported gradients for each kind of optimizer in a custom loop."""
    from hopsml.training.tensorflow.setup import install_import_hook

    install_import_hook(current())
    import keras
    import tensorflow as tf
    import tf_keras

    optimizers = {
        "Keras 3": keras.optimizers.SGD(0.1),
        "tf_keras": tf_keras.optimizers.SGD(0.1),
        "tf_keras, legacy": tf_keras.optimizers.legacy.SGD(0.1),
        "TensorFlow 1": tf.compat.v1.train.GradientDescentOptimizer(0.1),
    }
    before, after = collective_stats.recorded_values(), {}
    for name, optimizer in optimizers.items():
        optimizer.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
        after[name] = collective_stats.recorded_values()
        collective_stats.reset()
    return {"before": before, "after": after}
