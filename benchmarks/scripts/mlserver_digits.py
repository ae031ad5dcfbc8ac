"""The digits model for MLServer: a custom runtime that calls the SavedModel's signature on batches."""

from __future__ import annotations

from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Digits(MLModel):  # type: ignore[misc]
    """Runtime of MLServer that loads the SavedModel in the folder ``parameters.uri``."""

    async def load(self) -> bool:
        """Load the model once, in the server's process."""
        import tensorflow as tf

        self._loaded = tf.saved_model.load(self.settings.parameters.uri)
        self._call = self._loaded.signatures["serving_default"]
        self._constant: Any = tf.constant
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return the outputs of one batch."""
        (given,) = payload.inputs
        outputs = self._call(**{given.name: self._constant(NumpyCodec.decode_input(given), "float32")})
        shown = [NumpyCodec.encode_output(name, value.numpy()) for name, value in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=shown)
