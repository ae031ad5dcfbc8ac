"""PyTorch under hopsml: one model on all workers, whose process group is there when the function begins.

    def train():
        model = hopsml.torch.prepare(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...
    experiment.torch(train, num_workers=8)

Importing this module imports no torch; the first call does.
"""

from hopsml.training.torch.prepare import device, no_sync, prepare

__all__ = ["device", "no_sync", "prepare"]
