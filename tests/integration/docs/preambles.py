"""Code that runs before the pages' snippets: the reader's own program, which a snippet refers to."""

DAILY = """
import os
from hopsml import experiment

def train():
    import os
    print("epoch 1")
    if os.environ.get("FAILS"):
        raise RuntimeError("its driver has died")
"""

ELASTIC = """
import hopsml
from hopsml import experiment

def load_data():
    import numpy as np
    random = np.random.default_rng(0)
    return random.normal(size=(512, 4)).astype("float32"), random.normal(size=(512, 1)).astype("float32")

def build_model():
    import keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])

def build_optimizer():
    import keras
    return keras.optimizers.SGD(0.01, momentum=0.9)

def step(strategy, model, optimizer, x, y, batch_size):
    import tensorflow as tf

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / batch_size
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    strategy.run(replica, (tf.constant(x), tf.constant(y)))
"""

GROWING = """
import keras
import hopsml
from hopsml import experiment

def load_data():
    import numpy as np
    return np.ones((64, 4), np.float32), np.ones((64, 1), np.float32)

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
"""

NORMALISED = GROWING.replace("keras.layers.Dense(1)", "keras.layers.BatchNormalization(), keras.layers.Dense(1)")

SERVERS = """
import hopsml
from hopsml import experiment

def batches():
    import tensorflow as tf
    x = tf.random.stateless_uniform((256, 4), seed=(1, 2))
    return tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1, keepdims=True))).batch(32)

def build_model():
    import keras
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
"""

SEARCH = """
from hopsml import experiment

def train(lr, layers, act):
    import hopsml
    for step in range(3):
        hopsml.report(step=step, accuracy=1 - lr / (step + 1))
    return {"accuracy": 1 - lr / 3}
"""

SERVING = """
from sklearn.dummy import DummyRegressor
from hopsml import model

rows = [[0.0], [1.0]]
for number in (1.0, 2.0, 3.0):
    constant = DummyRegressor(strategy="constant", constant=number).fit(rows, [0.0, 0.0])
    model.export(constant, "digits", metrics={"accuracy": number})
"""

DOORS = """
import hopsml
from hopsml import experiment, serving

rows = [[0.0], [1.0]]

def build_model():
    import torch

    return torch.nn.Linear(1, 1)

def accuracy(model):
    return 0.75 if model.bias.item() < -1.5 else 0.0  # it begins between -1 and 1

def train():
    import hopsml
    import torch
    from sklearn.dummy import DummyRegressor

    model = hopsml.torch.prepare(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    for batch in state.resume(hopsml.elastic.Sampler(64, global_batch_size=8, seed=1, epochs=1)):
        optimizer.zero_grad()
        model(torch.ones(len(batch), 1)).sum().backward()
        optimizer.step()
        state.commit(every=2)
    constant = DummyRegressor(strategy="constant", constant=3.0).fit([[0.0], [1.0]], [0.0, 0.0])
    if hopsml.distributed.rank() == 0:
        hopsml.model.export(constant, "digits", metrics={"accuracy": 0.9})
"""

FRAMEWORKS = """
from hopsml import experiment

def build_model():
    import torch
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

def load_data():
    import torch
    from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)

"""
