"""What runs the applications of jobs: YARN, or this machine. Threads and processes are here; decisions are elsewhere."""

from hopsml.service.engine.base import Engine, LogPiece, Look, NodeSeen, SubmitOrder

__all__ = ["Engine", "LogPiece", "Look", "NodeSeen", "SubmitOrder"]
