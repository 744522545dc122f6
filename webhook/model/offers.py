"""Offers: the forms of GPU that nodes advertise."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.objects import Taint
from webhook.model.quantity import format_mib


class GpuOffer(msgspec.Struct, frozen=True, gc=False):
    """One form of GPU: all nodes that advertise the same thing under the same taints.

    Attributes:
        resource: Resource name, for example "nvidia.com/mig-1g.10gb".
        form: Whole card, MIG instance, MPS share or time-sliced share.
        product: Label `nvidia.com/gpu.product` of the nodes (suffixes kept), or "".
        profile: MIG profile name ("1g.10gb", "1g.10gb+me"), or "".
        memory_mib: GPU memory of one unit in MiB, the lowest that is safe to plan with; None if unknown.
        compute_milli: Thousandths of the card's compute that one unit gets.
        gpu_milli: Thousandths of a whole card that one unit takes from others: the larger of its compute and memory
            shares, rounded up. A whole card is 1000.
        isolation: Isolation between neighbors.
        replicas: Shares of each card or instance; 1 if it is not shared.
        selector: Labels that select these nodes and none of another size, as (key, value) pairs.
        taints: NoSchedule and NoExecute taints of all these nodes.
        nodes: Bit mask over the fleet's nodes: bit i is node i.
        capacity: Units that all nodes advertise together (`status.allocatable`).
        compute_capability: (major, minor), or None.
        driver: Driver version as numbers, for example (580, 95, 5); () if unknown. The oldest node's.
        cuda: Highest CUDA version the driver supports, (major, minor); () if unknown. The oldest node's.
    """

    resource: str
    form: GpuForm
    product: str
    profile: str
    memory_mib: int | None
    compute_milli: int
    gpu_milli: int
    isolation: IsolationLevel
    replicas: int
    selector: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    nodes: int
    capacity: int
    compute_capability: tuple[int, int] | None = None
    driver: tuple[int, ...] = ()
    cuda: tuple[int, ...] = ()


AllowedShares = tuple[tuple[GpuForm, ...], IsolationLevel, int]
"""What a policy allows: forms in order of preference, minimum isolation, and largest share of a card in thousandths."""


def is_allowed_share(offer: GpuOffer, allowed: AllowedShares) -> bool:
    """Return whether a policy allows an offer."""
    forms, isolation, most = allowed
    return offer.form in forms and offer.isolation >= isolation and offer.gpu_milli <= most


def device_of_class(offer: GpuOffer) -> str:
    """Return the device that an offer of a device class gives, whose name need not say it; "" of another offer.

    The resource of such an offer is that of the class, or for claims the class itself.
    """
    if "/" in offer.resource and not offer.resource.startswith(DEVICE_CLASS_PREFIX):
        return ""
    kind = offer.profile or ("whole GPU" if offer.form is GpuForm.WHOLE else "MIG device")
    return f"{kind}, {format_mib(offer.memory_mib)}" if offer.memory_mib is not None else kind


def describe_offer(offer: GpuOffer) -> str:
    """Return the resource of an offer; of one for claims, the device and its class."""
    return offer.resource if "/" in offer.resource else f"{device_of_class(offer)} of class {offer.resource}"


class NodeHardware(NamedTuple):
    """Driver and GPUs of one node, from its labels. Fields are those of `GpuOffer`, for one node.

    Attributes:
        product: Product of the whole card, in lower case, even if cards are partitioned or shared.
    """

    driver: tuple[int, ...]
    cuda: tuple[int, ...]
    compute_capability: tuple[int, int] | None
    product: str
