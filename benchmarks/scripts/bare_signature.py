"""CPU time of the bare signature: BARE_SIGNATURE SAVED_MODEL ROWS CALLS prints milliseconds of the process per call."""

from __future__ import annotations

import sys
import time


def main(folder: str, rows: int, calls: int) -> None:
    """Call the signature ``calls`` times and print the milliseconds per call."""
    import numpy as np
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    call = loaded.signatures["serving_default"]
    (name,) = call.structured_input_signature[1]
    given = np.full((rows, 64), 0.5, np.float32)

    def once() -> None:
        for value in call(**{name: tf.constant(given)}).values():
            value.numpy()

    for _ in range(50):
        once()
    began = time.process_time()
    for _ in range(calls):
        once()
    print((time.process_time() - began) * 1000 / calls)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
