"""PyTorch integration: one model on all workers; the process group exists when the training function starts.

    def train():
        model = hopsml.torch.prepare(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...
    experiment.torch(train, num_workers=8)

Importing this module does not import torch; the first call does.
"""

from hopsml.training.torch.prepare import device, no_sync, prepare
from hopsml.training.torch.training_loop import TorchTrainingLoop as TrainingLoop
from hopsml.training.torch.withheld import finish_updates

__all__ = ["TrainingLoop", "device", "finish_updates", "no_sync", "prepare"]


def __dir__() -> list[str]:
    return list(__all__)
