"""Parse GPU resource names."""

from __future__ import annotations

import re

import msgspec

from webhook.model.bounded_cache import request_cache
from webhook.well_known import GROUP

NVIDIA_PREFIX = "nvidia.com/"
WHOLE_GPU = f"{NVIDIA_PREFIX}gpu"
MIG_PREFIX = f"{NVIDIA_PREFIX}mig-"
SHARED_SUFFIX = ".shared"
SHARED_GPU = f"{WHOLE_GPU}{SHARED_SUFFIX}"
ACCOUNTING_RESOURCE = f"{GROUP}/gpu-milli"
"""Counts thousandths of a whole GPU."""

CARD_MILLI = 1000
"""A whole GPU, in thousandths."""

DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the resource names that stand for device classes."""

OTHER_VENDOR_PREFIXES = ("amd.com/", "gpu.intel.com/", "habana.ai/", "aws.amazon.com/neuron", "google.com/tpu")
"""Accelerators of other vendors, which are ignored."""

_PROFILE_PATTERN = "([0-9]+)g[.]([0-9]+)gb(?:[.](me[.]all|me|gfx)|(-me))?"
_PROFILE = re.compile(rf"{_PROFILE_PATTERN}\Z")

GPU_PATTERN = f"^nvidia[.]com/(gpu|mig-{_PROFILE_PATTERN})([.]shared)?$"
"""The names that `parse_gpu_resource` accepts, as a pattern for CEL."""


class GpuResource(msgspec.Struct, frozen=True, gc=False):
    """The parts of a GPU resource name.

    Attributes:
        name: The resource name.
        mig: True for a MIG profile.
        shared: True for a renamed share (".shared").
        profile: Profile name as NVIDIA writes it ("1g.10gb+me"), "" if not MIG.
        slices: Compute slices of the profile, 0 if not MIG.
    """

    name: str
    mig: bool
    shared: bool
    profile: str = ""
    slices: int = 0


def may_take_gpus(name: str) -> bool:
    """Return whether a pod that requests a resource may get GPUs: one of the device plugin, or a device class."""
    return name.startswith(DEVICE_CLASS_PREFIX) or parse_gpu_resource(name) is not None


@request_cache(1024)
def parse_gpu_resource(name: str) -> GpuResource | None:
    """Parse a resource name; None if it is not a GPU of NVIDIA's device plugin.

    >>> parse_gpu_resource("nvidia.com/mig-1g.10gb.me")
    GpuResource(name='nvidia.com/mig-1g.10gb.me', mig=True, shared=False, profile='1g.10gb+me', slices=1)
    """
    if not name.startswith(NVIDIA_PREFIX):
        return None
    base = name.removesuffix(SHARED_SUFFIX)
    shared = base != name
    if base == WHOLE_GPU:
        return GpuResource(name=name, mig=False, shared=shared)
    match = _PROFILE.match(base.removeprefix(MIG_PREFIX)) if base.startswith(MIG_PREFIX) else None
    if match is None:
        return None
    slices, gigabytes, plus, minus = match.groups()
    profile = f"{slices}g.{gigabytes}gb" + (f"+{plus}" if plus else minus or "")
    return GpuResource(name=name, mig=True, shared=shared, profile=profile, slices=int(slices))
