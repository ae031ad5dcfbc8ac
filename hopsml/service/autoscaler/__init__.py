"""Autoscaler as pure code: the caller provides the clock, the scheduler's demand and the provider of nodes.

``decide`` takes the memory of earlier decisions, the demand and the current nodes, and returns which nodes to launch,
drain and terminate.
"""

from hopsml.service.autoscaler.decide import ScalingDecision, decide_scaling, growth_text
from hopsml.service.autoscaler.model import (
    DrainNode,
    FleetMemory,
    FleetNode,
    GroupMemory,
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
    "decide_scaling",
    "growth_text",
]
