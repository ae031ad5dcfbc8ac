"""What a training function returned, as it is recorded; see ``hopsml.cluster.shared.plain``, which workers use too."""

from hopsml.cluster.shared.plain import as_json, outputs

__all__ = ["as_json", "outputs"]
