"""The thread that runs the jobs: it asks store, engine and scheduler in turn, and carries out what they say."""

from hopsml.service.manager.manager import Manager

__all__ = ["Manager"]
