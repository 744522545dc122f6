"""Resources that one node advertises: sizes from its labels first, then from the MIG catalog, otherwise unknown.

Which resources exist, and how many units, comes from `status.allocatable` alone: under the mixed MIG strategy
`gpu.count`, `gpu.product` and `gpu.memory` still describe whole cards when all of them are partitioned.

Source: k8s-device-plugin `internal/rm` and `internal/lm`; GKE's and EC2's labels through `node_labels`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from webhook.model import mig_catalog
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.gpu_resources import MIG_PREFIX, SHARED_SUFFIX, WHOLE_GPU, GpuResource, parse_gpu_resource
from webhook.model.node_labels import (
    MEMORY_LABEL,
    MIG_MARK,
    MPS_CAPABLE_LABEL,
    PRODUCT_LABEL,
    SHARED_MARK,
    SHARING_LABEL,
    CloudGpuInfo,
    Labels,
    card_memory_mib,
    card_product,
    compute_capability,
    cuda_version,
    driver_version,
    parse_count,
    parse_memory_mib,
    read_cloud_labels,
)
from webhook.model.objects import Node
from webhook.model.offers import NodeHardware
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_whole_number

INVALID_MIG_MARK = "-mig-invalid"
MAX_UNITS = 4096
"""Units of one GPU resource on one node: sixteen cards in 256 shares each. More is a mistake and counts as none."""

USUAL_SLICES = 7
"""Compute slices of nearly every MIG card, for an unknown product."""


class AdvertisedResource(msgspec.Struct, frozen=True, gc=False):
    """One resource name of one node. Units and meanings are those of `GpuOffer`."""

    resource: str
    form: GpuForm
    product: str
    profile: str
    memory_mib: int | None
    compute_milli: int
    gpu_milli: int
    isolation: IsolationLevel
    replicas: int
    units: int


def gpu_units(amounts: Mapping[str, QuantityText]) -> dict[str, int]:
    """Return GPU units by resource name; invalid, zero and implausible amounts are left out."""
    return {name: count for name, count in _gpu_counts(amounts) if 0 < count <= MAX_UNITS}


def implausible_gpu_units(amounts: Mapping[str, QuantityText]) -> dict[str, int]:
    """Return GPU resources with more units than any node can have."""
    return {name: count for name, count in _gpu_counts(amounts) if count > MAX_UNITS}


def _gpu_counts(amounts: Mapping[str, QuantityText]) -> Iterator[tuple[str, int]]:
    return ((name, parse_whole_number(amount) or 0) for name, amount in amounts.items() if parse_gpu_resource(name))


def advertised_resources(node: Node) -> Iterator[AdvertisedResource]:
    """Yield every GPU resource that a node advertises."""
    labels = node.metadata.labels
    known = read_cloud_labels(labels)
    installed = gpu_units(node.status.capacity)
    for name, units in gpu_units(node.status.allocatable).items():
        resource = parse_gpu_resource(name)
        if resource and (resource.mig or INVALID_MIG_MARK not in labels.get(PRODUCT_LABEL, "").lower()):
            yield _advertised_resource(resource, labels, known, units, max(units, installed.get(name, 0)))


def node_hardware(labels: Labels) -> NodeHardware:
    """Return driver and GPUs of a node."""
    product = labels.get(PRODUCT_LABEL) or read_cloud_labels(labels).product
    return NodeHardware(driver_version(labels), cuda_version(labels), compute_capability(labels), card_product(product))


def _advertised_resource(
    resource: GpuResource, labels: Labels, known: CloudGpuInfo, units: int, installed: int
) -> AdvertisedResource:
    slice_of = resource if resource.mig else _advertised_profile(labels.get(PRODUCT_LABEL, ""), known)
    block = resource.name.removesuffix(SHARED_SUFFIX)
    product = labels.get(PRODUCT_LABEL) or known.product
    if slice_of:
        unit = _mig_instance_size(slice_of, block, product, labels)
    else:
        memory = parse_memory_mib(labels.get(MEMORY_LABEL)) or known.memory_mib or card_memory_mib(product)
        unit = UnitSize(memory, 1000, 1000)

    count = parse_count(labels.get(f"{block}.count"))
    replicas = _count_shares(resource, block, labels, known, installed)
    if count and installed > count * replicas:
        unit = UnitSize(None, unit.compute_milli, unit.gpu_milli)  # several models, but labels describe one
    form, isolation = _form_and_isolation(bool(slice_of), replicas, block, labels, known)
    return AdvertisedResource(
        resource=resource.name,
        form=form,
        product=labels.get(PRODUCT_LABEL, ""),
        profile=slice_of.profile if slice_of else "",
        memory_mib=unit.memory_mib // replicas if unit.memory_mib else None,
        compute_milli=unit.compute_milli // replicas,
        gpu_milli=_divide_up(unit.gpu_milli, replicas),
        isolation=isolation,
        replicas=replicas,
        units=units,
    )


class UnitSize(msgspec.Struct, frozen=True, gc=False):
    """A whole card or a MIG instance, before it is shared."""

    memory_mib: int | None
    compute_milli: int
    gpu_milli: int


def _advertised_profile(product: str, known: CloudGpuInfo) -> GpuResource | None:
    """Return the MIG profile of `nvidia.com/gpu` (single strategy, GKE partitions); None if it is a card."""
    _, mark, profile = product.lower().partition(MIG_MARK)
    name = profile.removesuffix(SHARED_MARK) if mark else known.partition
    return parse_gpu_resource(MIG_PREFIX + name) if name else None


def _mig_instance_size(profile: GpuResource, block: str, product: str, labels: Labels) -> UnitSize:
    """Return one MIG instance from its block of labels, then the catalog, then its name."""
    shape, card = mig_catalog.mig_profile_spec(product, profile.profile), mig_catalog.mig_card_spec(product)
    memory = parse_memory_mib(labels.get(f"{block}.memory")) or (shape.memory_mib if shape else None)
    slices = card.compute_slices if card else USUAL_SLICES

    sms = parse_count(labels.get(f"{block}.multiprocessors")) or (shape.sms if shape else None)
    compute = 1000 * sms // card.sms if sms and card and card.sms else 1000 * profile.slices // slices

    if shape and card:
        weight = mig_catalog.profile_milli(card, shape, profile.slices)
    else:
        total = parse_memory_mib(labels.get(MEMORY_LABEL)) if block != WHOLE_GPU else card_memory_mib(product)
        memory_weight = _divide_up(1000 * _divide_up(8 * memory, total), 8) if memory and total else 0
        weight = max(memory_weight, _divide_up(1000 * profile.slices, slices))
    return UnitSize(memory, min(1000, compute), min(1000, weight))


def _count_shares(resource: GpuResource, block: str, labels: Labels, known: CloudGpuInfo, installed: int) -> int:
    """Return the shares of each card or instance; if unknown, the most it can be.

    GFD writes the factor of one GPU, others write count times factor: the advertised units decide.
    """
    label = parse_count(labels.get(f"{block}.replicas")) or 0
    count = parse_count(labels.get(f"{block}.count")) or known.gpus or 0
    factor = label // count if count and label == installed and not label % count else label
    if factor > 1:
        return factor
    marked = labels.get(f"{block}.product", "").lower().endswith(SHARED_MARK)
    if not (resource.shared or marked or known.sharing):
        return 1
    return max(2, known.replicas or label or (_divide_up(installed, count) if count else installed))


def _form_and_isolation(
    mig: bool, replicas: int, block: str, labels: Labels, known: CloudGpuInfo
) -> tuple[GpuForm, IsolationLevel]:
    """Return form and isolation of one unit. The device plugin rejects MPS on MIG instances; GKE's allows it."""
    if replicas == 1:
        return (GpuForm.MIG if mig else GpuForm.WHOLE), IsolationLevel.HARDWARE
    strategy = labels.get(f"{block}.sharing-strategy") or labels.get(SHARING_LABEL)
    by_label = strategy == "mps" or (not strategy and labels.get(MPS_CAPABLE_LABEL) == "true")
    if known.sharing == "mps" or (by_label and not mig):
        return GpuForm.MPS, IsolationLevel.MEMORY
    return GpuForm.TIME_SLICING, IsolationLevel.NONE


def _divide_up(amount: int, parts: int) -> int:
    return -(-amount // parts)
