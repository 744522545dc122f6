"""Volumes of plugins that were part of Kubernetes, as the CSI driver serves them that replaced the plugin.

Such a volume names its zone by Kubernetes' labels, and the driver by a label of its own.

Source: `k8s.io/csi-translation-lib/plugins`, TranslateInTreePVToCSI.

VolumeZone: the nodes outside the zones and regions that a volume's labels name.

A node without any label of a zone or region is not checked. Claims from templates are not either.

Source: the VolumeZone plugin of kube-scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Pod, Volume
from webhook.model.storage_objects import CsiVolumeSource, PersistentVolume

AWS, AZURE, CINDER = "kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/cinder"
GCE, PORTWORX = "kubernetes.io/gce-pd", "kubernetes.io/portworx-volume"

CSI_DRIVERS = {
    AWS: "ebs.csi.aws.com",
    AZURE: "disk.csi.azure.com",
    CINDER: "cinder.csi.openstack.org",
    GCE: "pd.csi.storage.gke.io",
    PORTWORX: "pxd.portworx.com",
}
"""The driver that replaced each plugin."""

IN_TREE_PROVISIONERS = CSI_DRIVERS.keys() | {"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"}
"""Plugins that a driver replaced. Volumes of the last two count on no node."""

ZONE_KEYS = {
    AWS: "topology.ebs.csi.aws.com/zone",
    CINDER: "topology.cinder.csi.openstack.org/zone",
    GCE: "topology.gke.io/zone",
}
"""The node label by which a driver names zones."""

_AWS_VOLUME = re.compile(r"vol-[^/]*\Z")
_GCE_ZONE_PARTS = 3
_MANAGED = "managed"

_GCE_INLINE = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/"


class AttachedVolume(NamedTuple):
    """A volume that a driver attaches to nodes; of a claim without volume, the name of the claim is its handle."""

    driver: str
    handle: str


Terms = tuple[NodeSelectorTerm, ...]
"""Terms; a node must match at least one."""


class TopologyLabels(NamedTuple):
    """The labels by which a volume names zone and region."""

    zone: str
    region: str


def plugin_of_volume(volume: PersistentVolume) -> str:
    """Return the plugin of a volume that a CSI driver may serve instead; "" if there is none."""
    spec = volume.spec
    sources = {
        AWS: spec.aws_elastic_block_store,
        AZURE: spec.azure_disk,
        CINDER: spec.cinder,
        GCE: spec.gce_persistent_disk,
        PORTWORX: spec.portworx_volume,
    }
    return next((plugin for plugin, source in sources.items() if source is not None), "")


def csi_source(volume: PersistentVolume, plugin: str) -> CsiVolumeSource | None:
    """Return the driver and handle of a plugin's volume; None if it has no translation."""
    handle, spec = "", volume.spec
    if plugin == AWS and spec.aws_elastic_block_store is not None:
        handle = _aws_handle(spec.aws_elastic_block_store.volume_id)
    elif plugin == GCE and spec.gce_persistent_disk is not None:
        handle = _gce_handle(volume, spec.gce_persistent_disk.pd_name)
    elif plugin == AZURE and spec.azure_disk is not None:
        handle = spec.azure_disk.disk_uri if spec.azure_disk.kind.lower() == _MANAGED else ""
    elif plugin == CINDER and spec.cinder is not None:
        handle = spec.cinder.volume_id
    elif plugin == PORTWORX and spec.portworx_volume is not None:
        handle = spec.portworx_volume.volume_id
    return CsiVolumeSource(CSI_DRIVERS[plugin], handle) if handle else None


def inline_disks(pod: Pod) -> tuple[AttachedVolume, ...]:
    """Return the disks that a pod names without a claim and a driver attaches; () for most pods.

    NodeVolumeLimits counts these disks alone: a volume of `csi` in a pod counts on no node.
    """
    found = (_inline_disk(volume) for volume in pod.spec.volumes)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _inline_disk(volume: Volume) -> AttachedVolume | None:
    plugin = handle = ""
    if (aws := volume.aws_elastic_block_store) is not None:
        plugin, handle = AWS, _aws_handle(_text_at(aws, "volumeID"))
    elif (gce := volume.gce_persistent_disk) is not None:
        name = _text_at(gce, "pdName")
        plugin, handle = GCE, _GCE_INLINE + name if name else ""
    elif (azure := volume.azure_disk) is not None:
        plugin = AZURE
        handle = _text_at(azure, "diskURI") if _text_at(azure, "kind").lower() == _MANAGED else ""
    elif (cinder := volume.cinder) is not None:
        plugin, handle = CINDER, _text_at(cinder, "volumeID")
    elif (portworx := volume.portworx_volume) is not None:
        plugin, handle = PORTWORX, _text_at(portworx, "volumeID")
    return AttachedVolume(CSI_DRIVERS[plugin], handle) if handle else None


def _text_at(source: Mapping[str, Any], key: str) -> str:
    text = source.get(key)
    return text if isinstance(text, str) else ""


def _aws_handle(volume_id: str) -> str:
    """Return the id of a disk from "aws://zone/vol-1" or "vol-1"; "" if it is neither."""
    if not volume_id.startswith("aws://"):
        return volume_id
    name = urlsplit(volume_id).path.strip("/")
    return name if _AWS_VOLUME.match(name) else ""


def _gce_handle(volume: PersistentVolume, disk: str) -> str:
    labels = volume.metadata.labels
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE, "")).split(ZONE_DELIMITER)
    if len(zones) == 1:
        return f"projects/UNSPECIFIED/zones/{zones[0] or 'UNSPECIFIED'}/disks/{disk}"
    parts = [zone.split("-") for zone in zones]
    regions = {"-".join(each[:2]) for each in parts}
    if len(regions) != 1 or any(len(each) != _GCE_ZONE_PARTS for each in parts):
        return ""
    return f"projects/UNSPECIFIED/regions/{regions.pop()}/disks/{disk}"


def translated_terms(volume: PersistentVolume, plugin: str, terms: Terms | None) -> Terms | None:
    """Return the node affinity of a plugin's volume with the labels of its driver; None if it has none."""
    key, labels = ZONE_KEYS.get(plugin), _topology_labels(volume, terms or ())
    if key is None:
        return terms
    zones = _values_of(labels.zone, terms or ())
    if zones:
        terms = _with_key_replaced(terms or (), labels.zone, key)
    elif labels.zone in volume.metadata.labels:
        terms = _with_zones(terms, key, volume.metadata.labels[labels.zone].split(ZONE_DELIMITER))
    return _with_key_replaced(terms, BETA_REGION, REGION) if terms and labels.region == BETA_REGION else terms


def _topology_labels(volume: PersistentVolume, terms: Terms) -> TopologyLabels:
    keys, current = {one.key for term in terms for one in term.match_expressions}, TopologyLabels(ZONE, REGION)
    for found in (keys, volume.metadata.labels.keys()):
        if ZONE in found:
            return current
        if BETA_ZONE in found:
            return TopologyLabels(BETA_ZONE, BETA_REGION)
    return current


def _values_of(key: str, terms: Terms) -> set[str]:
    return {value for term in terms for one in term.match_expressions if one.key == key for value in one.values}


def _with_key_replaced(terms: Terms, before: str, after: str) -> Terms:
    return tuple(
        replace(
            term,
            match_expressions=tuple(
                replace(one, key=after) if one.key == before else one for one in term.match_expressions
            ),
        )
        for term in terms
    )


def _with_zones(terms: Terms | None, key: str, zones: Iterable[str]) -> Terms | None:
    """Return terms that also require a zone; the same ones if no zone has a name."""
    values = tuple(sorted({zone.strip() for zone in zones} - {""}))
    if not values:
        return terms
    required = NodeSelectorRequirement(key, "In", values)
    return tuple(
        replace(term, match_expressions=(*term.match_expressions, required)) for term in terms or (NodeSelectorTerm(),)
    )


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
CURRENT_LABELS = {BETA_ZONE: ZONE, BETA_REGION: REGION, ZONE: ZONE, REGION: REGION}
"""Each label of a zone or region, and the one that replaced it."""

ZONE_DELIMITER = "__"
ZONE_CONFLICT = "node(s) had no available volume zone"


def nodes_outside_zones(volume: PersistentVolume, fleet: Fleet) -> int:
    """Return the mask of the nodes that are not in the zones and regions of a volume's labels.

    A node without any such label counts as inside, as for the scheduler.
    """
    return nodes_without_zones_of(volume, fleet) & zoned_nodes(fleet)


def zoned_nodes(fleet: Fleet) -> int:
    """Return the mask of the nodes whose labels name a zone or region."""
    return union_masks(map(fleet.nodes_with_label, CURRENT_LABELS))


def nodes_without_zones_of(volume: PersistentVolume, fleet: Fleet) -> int:
    """Return the mask of the nodes whose labels do not name the zones and regions of a volume's labels."""
    labels, outside = volume.metadata.labels, 0
    if labels.keys().isdisjoint(CURRENT_LABELS):
        return 0
    for key, current in CURRENT_LABELS.items():
        zones = split_zones(labels[key]) if key in labels else ()
        if zones:
            inside = union_masks(_nodes_in(key, zone, fleet) | _nodes_in(current, zone, fleet, key) for zone in zones)
            outside |= fleet.all_nodes & ~inside
    return outside


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
