"""Lines that TensorFlow and XLA log as errors or warnings on every host without a GPU, or at each end of a data set."""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    rb"failed call to cuInit: .*(?:UNKNOWN ERROR \(303\)|CUDA_ERROR_NO_DEVICE|no CUDA-capable device)"
    rb"|cudaGetRuntimeVersion: Error loading CUDA libraries"
    rb"|Unable to register cu(?:DNN|FFT|BLAS) (?:plugin )?factory"
    rb"|computation placer already registered"
    rb"|TF-TRT Warning: Could not find TensorRT"
    rb"|OUT_OF_RANGE: End of sequence",
    re.IGNORECASE,
)
_HEAD = 400  # bytes of a line that are searched for such a message


def is_harmless(line: bytes) -> bool:
    """Return True if a line is such a message."""
    return _HARMLESS.search(line[:_HEAD]) is not None
