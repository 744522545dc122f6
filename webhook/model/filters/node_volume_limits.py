"""NodeVolumeLimits: how many volumes of a CSI driver can be attached to a node.

A volume that another pod of the node uses is attached once. A volume that is attached and used by no pod of the node
counts besides the new ones, even if it is one of them.

Source: the NodeVolumeLimits plugin of kube-scheduler (`nodevolumelimits/csi.go`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from webhook.model.csi_migration import (
    CSI_DRIVERS,
    IN_TREE_PROVISIONERS,
    AttachedVolume,
    csi_source,
    plugin_of_volume,
)
from webhook.model.filters.volume_rejections import VolumeProblem, VolumeRejection
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pod_volumes import VolumeUse
from webhook.model.storage_objects import PersistentVolume, PersistentVolumeClaim
from webhook.model.storage_view import ClaimKey, StorageObjects, StorageView, claim_class

TOO_MANY_VOLUMES = "node(s) exceed max volume count"


def attached_volume(objects: StorageObjects, key: ClaimKey, claim: PersistentVolumeClaim) -> AttachedVolume | None:
    """Return the volume of a claim that counts on a node; None if it counts on none."""
    volume = objects.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is None:
        return _volume_to_provision(objects, claim_class(claim), key)
    return _existing_volume(volume)


def _existing_volume(volume: PersistentVolume) -> AttachedVolume | None:
    plugin = plugin_of_volume(volume)
    source = csi_source(volume, plugin) if plugin else volume.spec.csi
    return (
        AttachedVolume(source.driver, source.volume_handle)
        if source and source.driver and source.volume_handle
        else None
    )


def _volume_to_provision(objects: StorageObjects, class_name: str, name: str) -> AttachedVolume | None:
    found = objects.classes.get(class_name)
    if found is None or not found.provisioner:
        return None
    if found.provisioner in IN_TREE_PROVISIONERS:
        driver = CSI_DRIVERS.get(found.provisioner)
        return AttachedVolume(driver, name) if driver is not None else None
    return AttachedVolume(found.provisioner, name)


def count_attached(
    objects: StorageObjects,
    claims: Iterable[ClaimKey],
    attachments: Iterable[tuple[str, str]],
    disks: Iterable[AttachedVolume] = (),
) -> Mapping[str, int]:
    """Return the number of volumes of each driver on a node.

    Args:
        claims: The claims that pods of the node use.
        attachments: Driver and volume name of each VolumeAttachment of the node.
        disks: Disks that pods of the node name without a claim.
    """
    held = {key: objects.claims[key] for key in claims if key in objects.claims}
    found = {*disks, *(attached_volume(objects, key, claim) for key, claim in held.items())}
    for driver, name in attachments:
        volume = objects.volumes.get(name)
        if driver and volume is not None and volume.spec.csi is not None:
            found.add(AttachedVolume(driver, volume.spec.csi.volume_handle))
    counts: defaultdict[str, int] = defaultdict(int)
    for each in found:
        if each is not None:
            counts[each.driver] += 1
    return counts


def new_volumes(
    namespace: str, uses: Iterable[VolumeUse], storage: StorageView
) -> Iterator[tuple[AttachedVolume, int]]:
    """Yield each volume that a pod needs attached, with the mask of the nodes on which another pod uses its claim."""
    seen = set()
    for place, use in enumerate(uses):
        claim = storage.claim_of(namespace, use)
        if claim is not None:
            key = f"{namespace}/{use.claim}"
            volume, nodes = attached_volume(storage.objects, key, claim), storage.user_nodes(key)
        elif use.template:
            name = f"{namespace}/{use.claim or f'new claim {place}'}"
            volume, nodes = _volume_to_provision(storage.objects, storage.class_name(use.spec), name), 0
        else:
            continue
        if volume is not None and volume not in seen:
            seen.add(volume)
            yield volume, nodes


def reject_by_limits(
    namespace: str, uses: Iterable[VolumeUse], storage: StorageView, pending: Mapping[str, int] | None = None
) -> list[VolumeRejection]:
    """Return the nodes to which too many volumes are attached already, one rejection for each driver.

    Args:
        pending: How many volumes of each driver other pods may attach to a node before this pod gets one.
    """
    by_driver: defaultdict[str, list[int]] = defaultdict(list)
    for volume, nodes in new_volumes(namespace, uses, storage):
        by_driver[volume.driver].append(nodes)
    found = [
        (driver, nodes)
        for driver, used_on in by_driver.items()
        if (nodes := _full_nodes(driver, used_on, storage, (pending or {}).get(driver, 0)))
    ]
    return [
        VolumeRejection(VolumeProblem.UNREACHABLE, nodes, TOO_MANY_VOLUMES, f"no more volumes of {driver} fit")
        for driver, nodes in found
    ]


def _full_nodes(driver: str, used_on: list[int], storage: StorageView, pending: int) -> int:
    """Return the nodes that cannot attach all new volumes.

    Args:
        used_on: For each new volume the mask of the nodes on which pods use it.
    """
    known = storage.driver_nodes.get(driver)
    if known is None or not known.limited:
        return 0
    full = known.limited & ~known.free.nodes_with_at_least(len(used_on) + pending)
    for position in bit_positions(full & union_masks(used_on)):
        needed = sum(not nodes >> position & 1 for nodes in used_on)
        if not needed or known.free.nodes_with_at_least(needed + pending) >> position & 1:
            full &= ~(1 << position)
    return full
