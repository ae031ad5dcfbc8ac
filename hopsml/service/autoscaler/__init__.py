"""How many nodes there should be: pure, the caller has the clock, the scheduler's demand and whoever gives nodes.

``decide`` takes what is remembered, what waits and which nodes there are; it says what to launch, drain, and end.
"""

from hopsml.service.autoscaler.decide import ScalingDecision, decide, growth
from hopsml.service.autoscaler.memory import FleetMemory, GroupMemory
from hopsml.service.autoscaler.model import (
    DrainNode,
    FleetNode,
    LaunchNodes,
    NodeGroup,
    NodePhase,
    RecallNode,
    ScalingAction,
    ScalingView,
    TerminateNode,
)

__all__ = [
    "DrainNode",
    "FleetMemory",
    "FleetNode",
    "GroupMemory",
    "LaunchNodes",
    "NodeGroup",
    "NodePhase",
    "RecallNode",
    "ScalingAction",
    "ScalingDecision",
    "ScalingView",
    "TerminateNode",
    "decide",
    "growth",
]
