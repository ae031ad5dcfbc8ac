"""Support of TensorFlow inside a worker; the public names are in ``hopsml.tensorflow``.

Only the files of this folder import TensorFlow or Keras. Importing hopsml does not import them: most files do so inside
functions, the others (``distribution/collective_strategy.py``, ``compression.py``, ``gradient_exchange.py``,
``keras/large_batch.py``, ``normalisations.py``) are imported inside functions.

    start of a worker           setup.py, import_hook.py
    bodies of special runs      mirrored.py, parameter_servers.py
    strategy and its settings   distribution/strategy.py -> collective_strategy.py, or merging.py under TensorFlow's
    reduction of gradients      distribution/gradient_hooks.py -> gradient_exchange.py -> compression.py, collective_ops.py
    Keras under a strategy      keras/repairs.py, group_state.py, saving.py; groups.py
    data and loops              fit/feeds.py, input_data.py, input_batches.py, training_loop.py, server_loop.py
    results                     fit/callbacks.py, elastic_fit.py; checkpoints.py, state_variables.py
"""
