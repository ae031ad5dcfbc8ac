"""Reconciliation loop of the job service, which connects the store, the engine and the scheduler."""

from hopsml.service.manager.manager import Manager

__all__ = ["Manager"]
