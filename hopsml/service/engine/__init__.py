"""Engines that run the applications of jobs: YARN, or local processes.

Threads and processes are in this package; decisions are made elsewhere.
"""

from hopsml.service.engine.base import Engine, LogPiece, Look, NodeSeen, SubmitOrder

__all__ = ["Engine", "LogPiece", "Look", "NodeSeen", "SubmitOrder"]
