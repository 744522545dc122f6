"""Topologies of Kueue: domains of nodes, such as racks, into which it admits the pods of one template together.

A flavor with a topology admits pods only if their domains have enough capacity, by the labels of nodes. An annotation
of the pods names the level whose one domain must hold all of them, or the level that must hold each group of a size.

Source: Kueue 0.19, `pkg/cache/scheduler/tas_flavor_snapshot.go`, `pkg/scheduler/flavorassigner/tas_flavorassigner.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from webhook.model.api_struct import ApiStruct
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.pods import ObjectMeta

_PREFIX = "kueue.x-k8s.io/podset-"
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = f"{_PREFIX}required-topology", f"{_PREFIX}preferred-topology"
UNCONSTRAINED_TOPOLOGY = f"{_PREFIX}unconstrained-topology"
GROUP_TOPOLOGY, GROUP_SIZE = f"{_PREFIX}slice-required-topology", f"{_PREFIX}slice-size"
UNREAD_ANNOTATIONS = (f"{_PREFIX}slice-required-topology-constraints", f"{_PREFIX}group-name")
"""Annotations by which pods depend on further levels, or on pods of another template."""

MAX_SIZE_DIGITS = 10
"""Digits of a number of pods, which is an int32."""


class TopologyLevel(ApiStruct, frozen=True):
    """One level of a topology: a label whose values are domains."""

    node_label: str = ""


class NodeTopologySpec(ApiStruct, frozen=True):
    """The levels of a topology, the widest first."""

    levels: tuple[TopologyLevel, ...] = ()


class NodeTopology(ApiStruct, frozen=True):
    """A Topology of Kueue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeTopologySpec = NodeTopologySpec()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the levels."""
        return tuple(level.node_label for level in self.spec.levels)


class TopologyRequest(NamedTuple):
    """The request of pods to the topology of their flavor.

    Attributes:
        is_explicit: True if they request one at all; otherwise they get flavors without a topology, if there are any.
        required: The level one domain of which must hold all pods; "" for any domains.
        levels: All levels that they name.
        group_level: The level one domain of which must hold each group of `group_size` pods; "" for single pods.
        unread: An annotation whose meaning is not known here; "" for none.
    """

    is_explicit: bool
    required: str
    levels: tuple[str, ...]
    group_level: str
    group_size: int
    unread: str


def read_topology_request(annotations: Mapping[str, str]) -> TopologyRequest:
    """Return what the annotations of pods request."""
    required, group_level = annotations.get(REQUIRED_TOPOLOGY, ""), annotations.get(GROUP_TOPOLOGY, "")
    levels = tuple(filter(None, (required, annotations.get(PREFERRED_TOPOLOGY, ""), group_level)))
    unread, size = next((key for key in UNREAD_ANNOTATIONS if key in annotations), ""), _size_of_group(annotations)
    if group_level and not size:
        unread = unread or GROUP_SIZE
    is_explicit = bool(levels) or bool(unread) or annotations.get(UNCONSTRAINED_TOPOLOGY) == "true"
    return TopologyRequest(is_explicit, required, levels, group_level, size or 1, unread)


def _size_of_group(annotations: Mapping[str, str]) -> int:
    text = annotations.get(GROUP_SIZE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS else 0


def split_into_domains(fleet: Fleet, labels: Sequence[str], nodes: int) -> list[int]:
    """Return the nodes of a mask by the values of some labels, which all of them have, as masks.

    Domains of a level have the values of all wider levels in common too: racks of one name in two blocks differ.
    """
    found: dict[tuple[str, ...], int] = {}
    for index in bit_positions(nodes):
        values = tuple(map(fleet.nodes[index].labels.__getitem__, labels))
        found[values] = found.get(values, 0) | 1 << index
    return list(found.values())
