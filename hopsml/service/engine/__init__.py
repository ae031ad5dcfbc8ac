"""What runs the applications of jobs: YARN, or this machine. Threads and processes are here; decisions are elsewhere."""

from hopsml.service.engine.base import Engine, Look, NodeSeen, Order

__all__ = ["Engine", "Look", "NodeSeen", "Order"]
