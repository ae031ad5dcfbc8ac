"""What runs the applications of jobs: YARN, or this machine. Threads and processes are here; decisions are elsewhere."""

from hopsml.service.engine.base import Engine, Look, NodeSeen, SubmitOrder

__all__ = ["Engine", "Look", "NodeSeen", "SubmitOrder"]
