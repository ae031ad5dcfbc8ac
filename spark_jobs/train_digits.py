"""A convolutional network on scikit-learn's digits, on every executor; local version: digits_single_machine.py."""

import hopsml


def build_model(lr):
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


def train(epochs=15, batch_size=128, lr=0.004):
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    strategy = hopsml.tensorflow.strategy()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=360, random_state=1)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(batch_size)
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(batch_size)

    with strategy.scope():
        model = build_model(lr)
    model.fit(data, epochs=epochs, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    return {"accuracy": model.evaluate(test, verbose=0)[1]}


if __name__ == "__main__":
    print(hopsml.experiment.collective_all_reduce(train, name="digits").summary())
