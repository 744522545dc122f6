"""The annotations of a pod that Rightslice reads and writes.

Users write most of them. The decision record and the original resources are written once, by the mutating phase, and
never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.pods import ResourceRequirements
from webhook.well_known import GROUP

KEEP_ANNOTATION = f"{GROUP}/keep"
"""Opt-out: "true" keeps the request as it is; so does any other value than "false", with a warning."""

GPU_MEMORY_ANNOTATION = f"{GROUP}/gpu-memory"
"""Declared need of GPU memory, for example 8Gi."""

GPU_COMPUTE_ANNOTATION = f"{GROUP}/gpu-compute"
"""Declared need of compute, for example 20%."""

CUDA_ANNOTATION = f"{GROUP}/cuda"
"""The CUDA version that the images need, for example ">=12.4"."""

CUDA_COMPAT_ANNOTATION = f"{GROUP}/cuda-compat"
""""true": the images bring NVIDIA's forward compatibility package."""

PROBE_ANNOTATION = f"{GROUP}/probe"
"""On a dry-run pod that tests whether the webhook answers."""

PROBE_ANSWER = "rightslice answers"
"""Start of the answer to it."""

DECISION_ANNOTATION = f"{GROUP}/decision"
"""The decision record, as JSON."""

ORIGINAL_ANNOTATION = f"{GROUP}/original-resources"
"""The requests before the change, as JSON."""

TOPOLOGY_ANNOTATION = f"{GROUP}/topology"
"""NVLink requirement: nvlink=required, nvlink=preferred or nvlink=ignored. The webhook writes it if the user did
not; the scheduler extender and `place` read it.
"""

GANG_SIZE_ANNOTATION = f"{GROUP}/gang-size"
"""Number of pods that run together, this one included. Users write it if no controller does."""

USER_ANNOTATIONS = (
    KEEP_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    GPU_COMPUTE_ANNOTATION,
    CUDA_ANNOTATION,
    CUDA_COMPAT_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    GANG_SIZE_ANNOTATION,
)
"""Annotations that users write."""

OWN_PREFIX = f"{GROUP}/"
OWN_ANNOTATIONS = frozenset({*USER_ANNOTATIONS, PROBE_ANNOTATION, DECISION_ANNOTATION, ORIGINAL_ANNOTATION})

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""The kubelet's mark on the image of a static pod."""

DIGEST_LENGTH = 12


class FractionRecord(msgspec.Struct, frozen=True):
    """A changed fraction of GPU memory: the flag or variable, and its number; `before` is "" if it was added."""

    setting: str
    before: str
    after: str


class DecisionRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The annotation `rightslice.dev/decision`. Unknown keys are ignored.

    Attributes:
        policies: Names of the policies that applied.
        digest: First 12 hex digits of the policy set's SHA-256.
        changed: Changed parts: "resources", "tolerations" …
        need: The need that was planned with, for example "8Gi declared".
        resource: The resource that was requested instead.
        gpu_milli: Thousandths of a whole GPU that one unit of it takes; 0 if unknown.
        changed_by: Changed parts by policy; policies that acted together share a key.
        memory_fractions: Changed fractions of GPU memory, by container.
    """

    policies: tuple[str, ...]
    digest: str
    changed: tuple[str, ...]
    need: str = ""
    resource: str = ""
    gpu_milli: int = 0
    changed_by: dict[str, tuple[str, ...]] = {}
    memory_fractions: dict[str, FractionRecord] = {}

    @property
    def changing_policies(self) -> tuple[str, ...]:
        """The policies that changed something; without `changed_by`, all of `policies`."""
        return tuple(name for names in self.changed_by for name in names.split(", ")) or self.policies

    @property
    def milli_saved_per_unit(self) -> int:
        """Thousandths of a GPU that one unit of the resource takes less than a whole GPU; 0 if unknown."""
        return CARD_MILLI - self.gpu_milli if 0 < self.gpu_milli < CARD_MILLI else 0


FORMER_RECORD_KEYS = {"offer": "resource", "milli": "gpuMilli", "by": "changedBy"}
"""Keys of the record before 0.1, and their names since; pods that were created then still have them."""

_decision = msgspec.json.Decoder(DecisionRecord)
_original = msgspec.json.Decoder(dict[str, ResourceRequirements])


def parse_decision_record(text: str) -> DecisionRecord | None:
    """Parse the decision record; None if Rightslice would not write it."""
    try:
        record = _decision.decode(text)
        if not record.resource and '"offer"' in text:
            record = _decode_former_record(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    digits = all(letter in "0123456789abcdef" for letter in record.digest)
    return record if digits and len(record.digest) == DIGEST_LENGTH else None


def _decode_former_record(text: str) -> DecisionRecord:
    former = msgspec.json.decode(text, type=dict[str, Any])
    return msgspec.convert({FORMER_RECORD_KEYS.get(key, key): value for key, value in former.items()}, DecisionRecord)


def parse_original_resources(text: str) -> Mapping[str, ResourceRequirements] | None:
    """Parse the requests before the change, by container name; None if the text is not such a record."""
    try:
        return _original.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
