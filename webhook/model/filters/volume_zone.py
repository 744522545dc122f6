"""VolumeZone: the nodes outside the zones and regions that a volume's labels name.

A node without any label of a zone or region is not checked. Claims from templates are not either.

Source: the VolumeZone plugin of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm
from webhook.model.storage_objects import PersistentVolume

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
CURRENT_LABELS = {BETA_ZONE: ZONE, BETA_REGION: REGION, ZONE: ZONE, REGION: REGION}
"""Each label of a zone or region, and the one that replaced it."""

ZONE_DELIMITER = "__"
ZONE_CONFLICT = "node(s) had no available volume zone"


def nodes_outside_zones(volume: PersistentVolume, fleet: Fleet) -> int:
    """Return the mask of the nodes that are not in the zones and regions of a volume's labels."""
    labels, outside = volume.metadata.labels, 0
    if labels.keys().isdisjoint(CURRENT_LABELS):
        return 0
    for key, current in CURRENT_LABELS.items():
        zones = split_zones(labels[key]) if key in labels else ()
        if zones:
            inside = union_masks(_nodes_in(key, zone, fleet) | _nodes_in(current, zone, fleet, key) for zone in zones)
            outside |= fleet.all_nodes & ~inside
    return outside & union_masks(map(fleet.nodes_with_label, CURRENT_LABELS))


def _nodes_in(key: str, zone: str, fleet: Fleet, unless: str = "") -> int:
    """Return the nodes whose label has a value; of those that also have the label `unless`, none."""
    term = NodeSelectorTerm((NodeSelectorRequirement(key, "In", (zone,)),))
    found = fleet.nodes_with_labels((term,))
    return found & ~fleet.nodes_with_label(unless) if unless and unless != key else found


def split_zones(label: str) -> tuple[str, ...]:
    """Return the zones of a label; () if one is empty, because then the label does not count.

    >>> split_zones("a__b"), split_zones("a__")
    (('a', 'b'), ())
    """
    zones = tuple(zone.strip() for zone in label.split(ZONE_DELIMITER))
    return zones if all(zones) else ()


def zone_labels(volume: PersistentVolume) -> Iterator[str]:
    """Yield the labels of a volume's zones and regions, for messages."""
    labels = volume.metadata.labels
    yield from (f"{key}={labels[key]}" for key in CURRENT_LABELS if key in labels)
