"""The annotations of a pod that Rightslice reads and writes, and how the two records among them are read.

A record is what Rightslice did to a pod: it is written once, by the mutating phase, and never changed.
Users write the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.model.pods import ResourceRequirements
from webhook.well_known import GROUP

KEEP_ANNOTATION = f"{GROUP}/keep"
"""The user's way out: "true" keeps the request as it is; whatever else is not "false" does too, with a warning."""

GPU_MEMORY_ANNOTATION = f"{GROUP}/gpu-memory"
"""The user's declared need of GPU memory, for example 8Gi."""

GPU_COMPUTE_ANNOTATION = f"{GROUP}/gpu-compute"
"""The user's declared need of compute, for example 20%."""

CUDA_ANNOTATION = f"{GROUP}/cuda"
"""The CUDA version that the images need, for example ">=12.4"."""

CUDA_COMPAT_ANNOTATION = f"{GROUP}/cuda-compat"
""""true": the images bring NVIDIA's forward compatibility package."""

PROBE_ANNOTATION = f"{GROUP}/probe"
"""On a pod that is only tried: who answers?"""

PROBE_ANSWER = "rightslice answers"
"""How the answer to it begins."""

DECISION_ANNOTATION = f"{GROUP}/decision"
"""Our record of what was decided, as JSON."""

ORIGINAL_ANNOTATION = f"{GROUP}/original-resources"
"""Our record of the requests before we changed them, as JSON."""

TOPOLOGY_ANNOTATION = f"{GROUP}/topology"
"""What the GPUs of a pod need of each other: nvlink=required, nvlink=preferred or nvlink=ignored. The webhook writes
it where the user did not; the scheduler extender and `place` read it."""

GANG_SIZE_ANNOTATION = f"{GROUP}/gang-size"
"""How many pods run together with this one, itself counted. Users write it where no controller does."""

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""The kubelet's mark on the image of a static pod."""

DIGEST_LENGTH = 12


class DecisionRecord(msgspec.Struct, frozen=True):
    """What `rightslice.dev/decision` says. Keys that we do not know are passed over.

    Attributes:
        policies: Names of the policies that spoke.
        digest: First 12 hex digits of the policy set's SHA-256.
        changed: What was changed: "resources", "tolerations" …
        need: The need that was planned with, for example "8Gi declared".
        offer: The resource that was given.
        milli: Thousandths of a whole GPU that one unit of it takes; 0 where the record does not say.
        by: What was changed, by the policy that changed it; several that spoke as one stand together.
    """

    policies: tuple[str, ...]
    digest: str
    changed: tuple[str, ...]
    need: str = ""
    offer: str = ""
    milli: int = 0
    by: dict[str, tuple[str, ...]] = {}

    @property
    def changing_policies(self) -> tuple[str, ...]:
        """The policies that changed something; of a record that does not say, all that spoke."""
        return tuple(name for names in self.by for name in names.split(", ")) or self.policies


_decision = msgspec.json.Decoder(DecisionRecord)
_original = msgspec.json.Decoder(dict[str, ResourceRequirements])


def parse_decision_record(text: str) -> DecisionRecord | None:
    """Read the decision record; None if it is not one that Rightslice writes."""
    try:
        record = _decision.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    digits = all(letter in "0123456789abcdef" for letter in record.digest)
    return record if digits and len(record.digest) == DIGEST_LENGTH else None


def parse_original_resources(text: str) -> Mapping[str, ResourceRequirements] | None:
    """Read the requests before the change, by container name; None if the text is not such a record."""
    try:
        return _original.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
