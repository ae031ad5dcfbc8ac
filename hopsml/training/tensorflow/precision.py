"""Mixed precision for everything that Keras makes from now on in this process."""

from __future__ import annotations


def mix() -> None:
    """Compute in float16 on GPUs, in bfloat16 without one; variables keep float32."""
    import tensorflow as tf

    kind = "mixed_float16" if tf.config.get_visible_devices("GPU") else "mixed_bfloat16"
    tf.keras.mixed_precision.set_global_policy(kind)
