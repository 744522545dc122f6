"""VolumeRestrictions: a claim with ReadWriteOncePod serves one pod at a time.

Source: the VolumeRestrictions plugin of kube-scheduler. Its other rule is about disks that pods name without a claim.
"""

from __future__ import annotations

from webhook.model.filters.volume_rejections import VolumeProblem, VolumeRejection
from webhook.model.pod_volumes import VolumeUse
from webhook.model.storage_view import StorageView, is_for_one_pod

IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def reject_by_other_pod(
    namespace: str, use: VolumeUse, storage: StorageView, *, waiting: bool
) -> VolumeRejection | None:
    """Return why a claim is in use; None if the pod may use it.

    Args:
        waiting: True if pods without a node count too, as they may get one first.
    """
    claim = storage.claim_of(namespace, use) if not use.template else None
    if claim is None or not is_for_one_pod(claim.spec):
        return None
    users = storage.users.nodes.get(f"{namespace}/{use.claim}", ())
    if not any(node or waiting for node in users):
        return None
    detail = f"claim {use.claim} (ReadWriteOncePod) is in use by another pod"
    return VolumeRejection(VolumeProblem.IN_USE, storage.fleet.all_nodes, IN_USE, detail)
