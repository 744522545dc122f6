"""The claims that a pod uses: by name, or created for it from a template (generic ephemeral volumes)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from webhook.model.bounded_cache import request_cache
from webhook.model.pods import NamedVolume, Pod, Volume
from webhook.model.storage_objects import VolumeClaimSpec

MAX_TEMPLATE_BYTES = 4096
"""Bytes of a claim's specification that are read. Usual ones have 200."""

MAX_POD_CLAIMS = 32
"""Claims of one pod that are read. Usual pods have one to three; the API server sets no limit."""


class VolumeUse(msgspec.Struct, frozen=True, gc=False):
    """One claim of a pod.

    Attributes:
        claim: The claim's name; "" while the name of the pod, which gives the name to it, is unknown.
        template: The specification of the claim that is created for the pod, in JSON; b"" for a claim by name.
        owner: The uid of the pod, which owns claims from its templates.
        is_own: True if no other pod uses it: from a template of the pod or of its StatefulSet.
    """

    claim: str
    template: bytes = b""
    owner: str = ""
    is_own: bool = False

    @property
    def spec(self) -> VolumeClaimSpec:
        """The specification of the claim that is created."""
        return _parse_template(self.template)


@request_cache(1024)
def _parse_template(template: bytes) -> VolumeClaimSpec:
    return msgspec.json.decode(template, type=VolumeClaimSpec)


PodVolumes = tuple[VolumeUse, ...]
"""The claims of a pod. One that is mounted as two volumes is there twice, and needs two volumes to bind."""

PodClaims = tuple[str, PodVolumes]
"""The namespace and the claims of a pod."""

NO_CLAIMS: PodClaims = ("", ())

WITHOUT_CLASS = msgspec.json.encode(VolumeClaimSpec(storage_class_name=""))
"""A template that cannot be read: its claim is never bound."""

MANY_CLAIMS: PodVolumes = (VolumeUse("", WITHOUT_CLASS),)
"""Stands for the claims of a pod with too many: nothing is known about them."""


def pod_volumes(pod: Pod) -> PodVolumes:
    """Return the claims of a pod; () for most pods."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None:
            break
    else:
        return ()
    uses = tuple(_volume_uses(pod))
    return uses if len(uses) <= MAX_POD_CLAIMS else MANY_CLAIMS


INLINE_DISKS = (
    *("aws_elastic_block_store", "azure_disk", "cinder", "gce_persistent_disk", "iscsi", "portworx_volume", "rbd"),
)
"""Disks that a pod may name without a claim; kube-scheduler checks which pods use them, or limits their number."""


def has_inline_disk(pod: Pod) -> bool:
    """Return whether a pod names a disk without a claim. Which other pods use it is not known here."""
    return any(_inline_disks(volume) != _NO_DISKS for volume in pod.spec.volumes)


_inline_disks, _NO_DISKS = attrgetter(*INLINE_DISKS), (None,) * len(INLINE_DISKS)


def _volume_uses(pod: Pod) -> Iterator[VolumeUse]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name = str(volume.persistent_volume_claim.get("claimName", ""))
            yield VolumeUse(name, is_own=_is_claim_of_stateful_set(pod, name))
        elif volume.ephemeral is not None:
            name = _ephemeral_claim_name(pod, volume)
            yield VolumeUse(name, _claim_template(volume), pod.metadata.uid if name else "", is_own=True)


def _ephemeral_claim_name(pod: Pod, volume: Volume) -> str:
    name = volume.name if isinstance(volume, NamedVolume) else ""
    return f"{pod.metadata.name}-{name}" if pod.metadata.name and name else ""


def _claim_template(volume: Volume) -> bytes:
    """Return the specification of the claim that is created, in JSON; one without class if it cannot be read."""
    template = (volume.ephemeral or {}).get("volumeClaimTemplate")
    try:
        spec = msgspec.convert(template["spec"] if isinstance(template, dict) else None, VolumeClaimSpec)
    except (msgspec.ValidationError, KeyError):
        return WITHOUT_CLASS
    encoded = msgspec.json.encode(spec)
    return encoded if len(encoded) <= MAX_TEMPLATE_BYTES else WITHOUT_CLASS


def _is_claim_of_stateful_set(pod: Pod, claim: str) -> bool:
    """Return whether a StatefulSet created a claim for this pod alone: its name ends in that of the pod."""
    owners = pod.metadata.owner_references
    return any(each.controller and each.kind == "StatefulSet" and _ends_in_pod(claim, each.name) for each in owners)


@request_cache(1024)
def _ends_in_pod(claim: str, stateful_set: str) -> bool:
    return re.fullmatch(rf".+-{re.escape(stateful_set)}-[0-9]+", claim, re.ASCII) is not None
