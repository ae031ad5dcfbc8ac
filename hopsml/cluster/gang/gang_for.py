"""Which machine a run's group is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.cluster.gang.elastic_gang import ElasticGang
from hopsml.cluster.gang.gang import Gang
from hopsml.cluster.gang.independent_gang import IndependentGang
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, IndependentGroup

_MACHINES: Mapping[type[AnyGroup], Any] = {
    FixedGroup: Gang,
    ElasticGroup: ElasticGang,
    IndependentGroup: IndependentGang,
}


def gang_for(group: AnyGroup) -> Gang:
    """The machine for a group of fixed size, of changing size, or of independent members."""
    machine: Gang = _MACHINES[type(group)](group)
    return machine
