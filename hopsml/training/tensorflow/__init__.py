"""Support of TensorFlow inside a worker; the public names are in ``hopsml.tensorflow``.

Only the files of this folder import TensorFlow or Keras, and only inside functions, so that importing hopsml does not
import them.

    settings of the reduction   merge.py (pure), reducer.py, strategy.py
    reduction of gradients      gradient_hooks.py -> gradient_exchange.py -> compression.py, transfers.py
    Keras 3 under the strategy  keras_repairs.py, batch_statistics.py, keras_callbacks.py, groups.py
    start of a worker           setup.py, versions.py (pure), import_hook.py
    results                     checkpoints.py, file_exchange.py, callbacks.py, export.py
"""
