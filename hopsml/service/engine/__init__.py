"""Engines that run the applications of jobs: YARN, or local processes.

Threads and processes are in this package; decisions are made elsewhere.
"""

from hopsml.service.engine.base import Engine, EngineState, LogPiece, NodeSeen, SubmitOrder

__all__ = ["Engine", "EngineState", "LogPiece", "NodeSeen", "SubmitOrder"]
