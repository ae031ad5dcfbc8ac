"""ResNet-50 on ImageNet as in "Extremely Large Minibatch SGD" (arXiv 1711.04325), by any number of workers.

32 images per worker; the rate is that of a batch of 256, scaled to the batch of all workers; RMSprop at first, then
SGD; a slow start instead of a warm-up; normalisation without moving averages; gradients sent in half precision.

    hopsml submit spark_jobs/imagenet_resnet50.py --profile yarn -- hdfs:///data/imagenet --workers 1024
    python spark_jobs/imagenet_resnet50.py hdfs:///data/imagenet --workers 1024 --dry-run
"""

import argparse
import itertools
import math

import hopsml
from hopsml import experiment

TRAINED, CLASSES, SIZE = 1_281_167, 1000, 224
FEATURES = {"image/encoded": (), "image/class/label": ()}  # the layout of TensorFlow's ImageNet files; labels from 1
STATISTICS = 0.02  # share of the training images over which statistics of normalisations are computed: 25 600
MEAN, DEVIATION = (123.68, 116.78, 103.94), (58.4, 57.12, 57.38)  # of ImageNet's red, green and blue


def recipe(epochs=90.0):
    """Return the recipe of sections 2 and 3.2 of the paper, completed from its reference, arXiv 1706.02677."""
    return hopsml.large_batch.Recipe(
        reference_batch_size=256,
        learning_rate=0.1,
        epochs=epochs,
        momentum=0.9,
        weight_decay=1e-4,
        optimizer="rmsprop_warmup",
        schedule=hopsml.large_batch.SlowStart(),
    )


def decoded(contents, size, distorts):
    """Decode JPEG files: for training a random part of each, randomly mirrored; otherwise the middle."""
    import tensorflow as tf

    def one(content):
        image = tf.io.decode_jpeg(content, channels=3)
        if distorts:
            begin, part, _ = tf.image.sample_distorted_bounding_box(
                tf.shape(image), tf.zeros((1, 0, 4)), min_object_covered=0.1, aspect_ratio_range=(0.75, 1.33),
                area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True,
            )  # fmt: skip
            image = tf.image.random_flip_left_right(tf.image.resize(tf.slice(image, begin, part), (size, size)))
        else:
            edge = tf.reduce_min(tf.shape(image)[:2])
            middle = tf.image.resize_with_crop_or_pad(image, edge * 7 // 8, edge * 7 // 8)
            image = tf.image.resize(middle, (size, size))
        return (image - tf.constant(MEAN)) / tf.constant(DEVIATION)

    return tf.map_fn(one, contents, fn_output_signature=tf.TensorSpec((size, size, 3), tf.float32))


def train(url, batch=32, epochs=90.0, size=SIZE, most_steps=None):
    """Train on ``url`` with ``batch`` images per worker; ``most_steps`` ends it before the last epoch."""
    import keras
    import tensorflow as tf

    has_gpu = bool(tf.config.list_physical_devices("GPU"))  # then NCCL reduces, which "auto" would not choose with fp16
    strategy = hopsml.tensorflow.strategy(implementation="nccl" if has_gpu else "auto", compression="fp16")
    rows = hopsml.data.tfrecords(f"{url}/train", FEATURES, cache=True)
    judged = hopsml.data.tfrecords(f"{url}/validation", FEATURES, cache=True).batch(batch * strategy.num_replicas_in_sync)
    plan = recipe(epochs).at(batch * strategy.num_replicas_in_sync, n_samples=len(rows.batch(1)))
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classes=CLASSES)
        optimizer = plan.keras()
        weights = model.trainable_variables
        optimizer.build(weights)
    losses = keras.losses.SparseCategoricalCrossentropy(reduction="none")

    @tf.function(reduce_retracing=True)
    def step(contents, labels, whole):
        def on_worker(images, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(losses(labels - 1, model(images, training=True))) / whole
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(on_worker, (decoded(contents, size, True), labels)), axis=None)

    @tf.function(reduce_retracing=True)
    def predict(contents):
        """Return the predicted labels of some JPEG files."""
        return tf.argmax(model(decoded(contents, size, False), training=False), 1) + 1

    def images():
        """Yield training images of this worker for the statistics of normalisations."""
        used = math.ceil(STATISTICS * plan.steps_per_epoch)
        for found in itertools.islice(rows.batch(plan.batch_size).shuffle(seed=2), used):
            yield decoded(tf.constant(found["image/encoded"]), size, True)

    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    accuracy, loss = 0.0, float("nan")
    for rows_of_step in state.resume(rows.batch(plan.batch_size).shuffle(seed=1).repeat(max(1, round(epochs)))):
        contents, labels = tf.constant(rows_of_step["image/encoded"]), tf.constant(rows_of_step["image/class/label"])
        loss = float(step(contents, labels, tf.constant(rows_of_step.global_size, tf.float32)))
        hopsml.report(step=state.batches, loss=loss)
        state.commit()
        is_last = state.batches in (most_steps, plan.steps)
        if is_last or state.batches % plan.steps_per_epoch == 0:
            hopsml.large_batch.recompute_statistics(model, images())
            same = {"accuracy": lambda labels, found: (labels == found).mean()}
            of_files = {"features": "image/encoded", "label": "image/class/label"}
            accuracy = hopsml.data.evaluate(lambda files: predict(tf.constant(files)), judged, same, **of_files)["accuracy"]
            hopsml.report(step=state.batches, accuracy=accuracy)
        if is_last:
            break
    return {"loss": loss, "accuracy": accuracy, "steps": state.batches, "batch": plan.batch_size}


def planned(workers, batch, epochs, gpus_per_host):
    """Return a text with the plan of a run with so many workers."""
    plan = recipe(epochs).at(batch * workers, n_samples=TRAINED)
    lines = [f"{workers} workers, {batch} images each", str(plan), "", "epoch  learning rate  SGD's share"]
    for epoch in (epochs * at / 90 for at in (0, 2, 5, 8, 10, 12.5, 20, 40, 70, 85, 90)):
        rate, share = plan.learning_rate_at(epoch), plan.sgd_share_at(epoch)
        lines.append(f"{epoch:5g}  {float(rate):13.4g}  {float(share):11.3f}")
    lines += ["", f"ring order, where hosts have {gpus_per_host} GPUs: {ring(workers, gpus_per_host)}"]
    return "\n".join(lines)


def ring(workers, gpus_per_host):
    """Return the ranks of each host, in the order in which hopsml would lay out hosts of these names."""
    from hopsml.cluster.shared.layout import Member, form

    members = [
        Member(str(n), f"10.0.{n // gpus_per_host // 250}.{n // gpus_per_host % 250 + 1}", 4000 + n % gpus_per_host,
               5000 + n % gpus_per_host, f"node{n // gpus_per_host}", gpu_indices=(n % gpus_per_host,))
        for n in reversed(range(workers))
    ]  # fmt: skip
    hosts, found = {one.agent_id: one.hostname for one in members}, {}
    for placement in form(members).placements:
        found.setdefault(hosts[placement.agent_id], []).append(placement.rank)
    named = [f"{host} {ranks[0]}-{ranks[-1]}" for host, ranks in found.items()]
    return ", ".join(named if len(named) <= 6 else [*named[:3], "...", *named[-2:]])


def main():
    """Train, or print the plan with ``--dry-run``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="a folder with the folders train and validation, of TFRecord files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker")
    parser.add_argument("--epochs", type=float, default=90.0)
    parser.add_argument("--size", type=int, default=SIZE, help="pixels of an image's edge")
    parser.add_argument("--most-steps", type=int, help="end before the last epoch")
    parser.add_argument("--gpus-per-host", type=int, default=8, help="for the plan")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and train nothing")
    given = parser.parse_args()
    if given.dry_run:
        print(planned(given.workers, given.batch, given.epochs, given.gpus_per_host))
        return
    args = {name: getattr(given, name) for name in ("url", "batch", "epochs", "size", "most_steps")}
    print(experiment.collective_all_reduce(train, args=args, name="imagenet-resnet50", num_workers=given.workers).summary())


if __name__ == "__main__":
    main()
