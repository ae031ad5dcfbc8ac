"""Which machine a run's group is."""

from __future__ import annotations

from hopsml.cluster.elastic_gang import ElasticGang
from hopsml.cluster.gang import Gang, GangSpec
from hopsml.cluster.independent_gang import IndependentGang


def gang_for(spec: GangSpec) -> Gang:
    """The machine for a group of fixed size, of changing size, or of independent members."""
    if spec.independent:
        return IndependentGang(spec)
    return ElasticGang(spec) if spec.elastic else Gang(spec)
