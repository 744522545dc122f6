"""Whether what an agent reports of a node's GPUs can be: whatever placement counts with is bounded here."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.errors import quote_text
from webhook.model.gpunodes import (
    MAX_LINK_RATE,
    MAX_NVLINKS,
    MAX_START,
    GpuDevice,
    GPUNode,
    GPUNodeStatus,
    MigInstance,
)
from webhook.placement.mig import MigGeometry, mig_geometry
from webhook.placement.topology import MAX_GPUS


def find_report_error(node: GPUNode) -> str:
    """Why a report cannot be used; "" where it can. One fault makes it unusable: what is wrong of one GPU says nothing
    good of the others."""
    return next(_report_errors(node.status), "")


def _report_errors(status: GPUNodeStatus) -> Iterator[str]:
    count, indexes = len(status.gpus), sorted(gpu.index for gpu in status.gpus)
    if not count:
        yield status.message or "it names no GPUs"
    if count > MAX_GPUS:
        yield f"it names {count} GPUs, and at most {MAX_GPUS} are told apart"
    elif indexes != list(range(count)):
        yield f"its GPUs must be numbered 0 to {count - 1}, found {', '.join(map(str, indexes))}"
    if not 0 <= status.nvlink_rate <= MAX_LINK_RATE:
        yield f"nvlinkRate must be 0 to {MAX_LINK_RATE}, found {status.nvlink_rate}"
    known = mig_geometry(status.product)
    for gpu in status.gpus:
        yield from (f"GPU {gpu.index}: {fault}" for fault in _gpu_report_errors(gpu, known))


def _gpu_report_errors(gpu: GpuDevice, known: MigGeometry | None) -> Iterator[str]:
    for link in gpu.links:
        if not 0 <= link.nvlinks <= MAX_NVLINKS:
            yield f"nvlinks must be 0 to {MAX_NVLINKS}, found {link.nvlinks}"
    for instance in gpu.instances:
        yield from _instance_report_errors(instance, known)


def _instance_report_errors(instance: MigInstance, known: MigGeometry | None) -> Iterator[str]:
    """Profiles of cards that are not known may be anything, and start anywhere on a card."""
    profile = known.profile(instance.profile) if known else None
    if known and not profile:
        yield f"its card has no MIG profile {quote_text(instance.profile)}"
    most = known.units - profile.memory_units if known and profile else MAX_START
    if not 0 <= instance.start <= most:
        yield f"the start of {quote_text(instance.profile)} must be 0 to {most}, found {instance.start}"
