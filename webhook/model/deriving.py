"""From one node to what it advertises: sizes from its labels first, from the catalogue second, else unknown.

What exists, and how many, comes from `status.allocatable` alone: under the mixed MIG strategy `gpu.count`,
`gpu.product` and `gpu.memory` go on describing whole cards when all of them are cut up.

Source: k8s-device-plugin `internal/rm` and `internal/lm`; GKE's and EC2's labels through `clouds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from webhook.model import catalogue
from webhook.model.clouds import Cloud, cloud
from webhook.model.modes import Form, Isolation
from webhook.model.nodelabels import (
    MEMORY,
    MPS_CAPABLE,
    PRODUCT,
    SHARING,
    Labels,
    compute_capability,
    cuda,
    driver,
    memory_mib,
    number,
)
from webhook.model.objects import Node
from webhook.model.offers import Hardware
from webhook.model.pods import Amount
from webhook.model.products import SHARED_MARK, card_of, whole_memory_mib
from webhook.model.quantity import whole
from webhook.model.resources import MIG_PREFIX, SHARED_SUFFIX, WHOLE_GPU, GpuResource, gpu_resource

INVALID_MIG = "-mig-invalid"
MOST_UNITS = 4096
"""Of one GPU resource on one node: sixteen cards in 256 shares each. More than that is a mistake, counted as none."""

USUAL_SLICES = 7
"""Compute slices of every MIG card but a few: taken where the product is not known."""


class Advert(msgspec.Struct, frozen=True, gc=False):
    """What one node advertises under one resource name. Units and meanings are those of `Offer`."""

    resource: str
    form: Form
    product: str
    profile: str
    memory_mib: int | None
    compute_milli: int
    gpu_milli: int
    isolation: Isolation
    replicas: int
    units: int


def gpu_units(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """GPU resources of a node by name; what is no whole number above zero, or beyond sense, is not there to be had."""
    return {name: count for name, count in _counts(amounts) if 0 < count <= MOST_UNITS}


def beyond_sense(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """GPU resources of which a node says that it has more units than any can have."""
    return {name: count for name, count in _counts(amounts) if count > MOST_UNITS}


def _counts(amounts: Mapping[str, Amount]) -> Iterator[tuple[str, int]]:
    return ((name, whole(amount) or 0) for name, amount in amounts.items() if gpu_resource(name))


def adverts(node: Node) -> Iterator[Advert]:
    """Everything that a node advertises, one for each GPU resource name that it has units of."""
    labels = node.metadata.labels
    known = cloud(labels)
    installed = gpu_units(node.status.capacity)
    for name, units in gpu_units(node.status.allocatable).items():
        resource = gpu_resource(name)
        if resource and (resource.mig or INVALID_MIG not in labels.get(PRODUCT, "").lower()):
            yield _advert(resource, labels, known, units, max(units, installed.get(name, 0)))


def hardware(labels: Labels) -> Hardware:
    """Driver and GPUs of a node."""
    product = labels.get(PRODUCT) or cloud(labels).product
    return Hardware(driver(labels), cuda(labels), compute_capability(labels), card_of(product))


def _advert(resource: GpuResource, labels: Labels, known: Cloud, units: int, installed: int) -> Advert:
    slice_of = resource if resource.mig else _partition(labels.get(PRODUCT, ""), known)
    block = resource.name.removesuffix(SHARED_SUFFIX)
    product = labels.get(PRODUCT) or known.product
    unit = _instance(slice_of, block, product, labels) if slice_of else _card(product, labels, known)

    count, replicas = number(labels.get(f"{block}.count")), _replicas(resource, block, labels, known, installed)
    if count and installed > count * replicas:
        unit = Unit(None, unit.compute_milli, unit.gpu_milli)  # several models, and labels speak of one
    form, isolation = _sharing(bool(slice_of), replicas, block, labels, known)
    return Advert(
        resource=resource.name,
        form=form,
        product=labels.get(PRODUCT, ""),
        profile=slice_of.profile if slice_of else "",
        memory_mib=unit.memory_mib // replicas if unit.memory_mib else None,
        compute_milli=unit.compute_milli // replicas,
        gpu_milli=_up(unit.gpu_milli, replicas),
        isolation=isolation,
        replicas=replicas,
        units=units,
    )


class Unit(msgspec.Struct, frozen=True, gc=False):
    """A whole card or a MIG instance, before it is shared."""

    memory_mib: int | None
    compute_milli: int
    gpu_milli: int


def _partition(product: str, known: Cloud) -> GpuResource | None:
    """The MIG profile that `nvidia.com/gpu` stands for here (single strategy, GKE partitions); None if a card."""
    lower = product.lower()
    at = lower.find("-mig-")
    name = lower[at + 5 :].removesuffix(SHARED_MARK) if at >= 0 else known.partition
    return gpu_resource(MIG_PREFIX + name) if name else None


def _card(product: str, labels: Labels, known: Cloud) -> Unit:
    memory = memory_mib(labels.get(MEMORY)) or known.memory_mib or whole_memory_mib(product)
    return Unit(memory, 1000, 1000)


def _instance(profile: GpuResource, block: str, product: str, labels: Labels) -> Unit:
    """One MIG instance: its block of labels, the catalogue, and the rule of names where neither says more."""
    shape, card = catalogue.shape(product, profile.profile), catalogue.card(product)
    memory = memory_mib(labels.get(f"{block}.memory")) or (shape.memory_mib if shape else None)
    slices = card.compute_slices if card else USUAL_SLICES

    sms = number(labels.get(f"{block}.multiprocessors")) or (shape.sms if shape else None)
    compute = 1000 * sms // card.sms if sms and card and card.sms else 1000 * profile.slices // slices

    if shape and card:
        weight = catalogue.weight(card, shape, profile.slices)
    else:
        total = memory_mib(labels.get(MEMORY)) if block != WHOLE_GPU else whole_memory_mib(product)
        held = _up(1000 * _up(8 * memory, total), 8) if memory and total else 0
        weight = max(held, _up(1000 * profile.slices, slices))
    return Unit(memory, min(1000, compute), min(1000, weight))


def _replicas(resource: GpuResource, block: str, labels: Labels, known: Cloud, installed: int) -> int:
    """Shares made of each card or instance; where nobody says how many, the most it can be.

    GFD writes the factor of one GPU, some write count times factor: what is advertised tells which.
    """
    label = number(labels.get(f"{block}.replicas")) or 0
    count = number(labels.get(f"{block}.count")) or known.gpus or 0
    factor = label // count if count and label == installed and not label % count else label
    if factor > 1:
        return factor
    marked = labels.get(f"{block}.product", "").lower().endswith(SHARED_MARK)
    if not (resource.shared or marked or known.sharing):
        return 1
    return max(2, known.replicas or label or (_up(installed, count) if count else installed))


def _sharing(mig: bool, replicas: int, block: str, labels: Labels, known: Cloud) -> tuple[Form, Isolation]:
    """Form and isolation of one unit. The device plugin refuses MPS on MIG instances; GKE's allows it."""
    if replicas == 1:
        return (Form.MIG if mig else Form.WHOLE), Isolation.HARDWARE
    strategy = labels.get(f"{block}.sharing-strategy") or labels.get(SHARING)
    by_label = strategy == "mps" or (not strategy and labels.get(MPS_CAPABLE) == "true")
    if known.sharing == "mps" or (by_label and not mig):
        return Form.MPS, Isolation.MEMORY
    return Form.TIME_SLICING, Isolation.NONE


def _up(amount: int, parts: int) -> int:
    return -(-amount // parts)
