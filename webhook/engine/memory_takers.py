"""Whether a framework that takes a fraction of the memory it sees fits a smaller GPU.

Such a framework sees one MIG slice's memory, but on a shared card the whole card's. Time slicing limits nothing, so it
would take its neighbors' memory. MPS ends it at the share's limit. On a slice, its fraction must cover the need.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.engine.pod_context import GpuPodContext
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.offers import GpuOffer
from webhook.model.pods import Container
from webhook.model.preallocation import (
    MemoryFraction,
    PreallocatingFramework,
    memory_fraction,
    preallocating_framework,
)
from webhook.model.quantity import format_mib
from webhook.model.workloads import workload_of

CONSTANT_USAGE = "its usage is constantly close to the whole GPU"


def framework_of(container: Container) -> PreallocatingFramework | None:
    """Return the framework in a container that allocates memory it may not need."""
    return preallocating_framework(container.image, container.command + container.args, _variables(container))


def reason_by_framework(context: GpuPodContext, offers: tuple[GpuOffer, ...], need_mib: int) -> KeepRequest | None:
    """Return why a framework of the pod cannot use one unit of these offers of one form; None if it can."""
    if offers[0].form is GpuForm.WHOLE:
        return None
    limited = offers[0].isolation > IsolationLevel.NONE
    for container in _gpu_containers(context):
        framework = framework_of(container)
        if framework is None or not framework.takes_visible:
            if not limited and _fills_its_gpu(context, container):
                return KeepRequest(KeepReason.NO_MEMORY_LIMIT, CONSTANT_USAGE)
            continue
        if not limited:
            return KeepRequest(KeepReason.NO_MEMORY_LIMIT, framework.name)
        reason = _reason_by_fraction(framework, container, offers, need_mib)
        if reason is not None:
            return reason
    return None


def takes_visible_memory(context: GpuPodContext) -> bool:
    """Return whether a container of the pod takes a fraction of the memory it sees."""
    found = map(framework_of, _gpu_containers(context))
    return any(framework is not None and framework.takes_visible for framework in found)


def _gpu_containers(context: GpuPodContext) -> Iterable[Container]:
    return context.gpu_requests.containers.values()


def _variables(container: Container) -> tuple[tuple[str, str], ...]:
    return tuple([(variable.name, variable.value) for variable in container.env]) if container.env else ()


def _fills_its_gpu(context: GpuPodContext, container: Container) -> bool:
    use = context.usage.find(context.request.namespace, workload_of(context.pod), container.name)
    return use is not None and use.preallocates


def _reason_by_fraction(
    framework: PreallocatingFramework, container: Container, offers: tuple[GpuOffer, ...], need_mib: int
) -> KeepRequest | None:
    """Return why the fraction that a framework takes is less than the need, or more than the limit of an MPS share."""
    fraction = memory_fraction(framework, container.command + container.args, _variables(container))
    for offer in offers:
        limit = offer.memory_mib or 0
        visible = limit * offer.replicas if offer.form is GpuForm.MPS else limit
        if not _is_suitable(fraction, visible, need_mib, limit, shared=offer.replicas > 1):
            return KeepRequest(KeepReason.MEMORY_FRACTION, _advice(framework, fraction, offer, visible, need_mib))
    return None


def _is_suitable(fraction: MemoryFraction, visible: int, need: int, limit: int, *, shared: bool) -> bool:
    """Return whether a fraction of the visible memory is between need and limit; if unknown, whether nobody shares."""
    if fraction.value is None:
        return not shared
    return need <= fraction.value * visible <= limit


def _advice(
    framework: PreallocatingFramework, fraction: MemoryFraction, offer: GpuOffer, visible: int, need_mib: int
) -> str:
    """Say what the framework takes, and what to write for the offer."""
    sees = f"{format_mib(visible)} that it sees on {offer.resource}"
    if fraction.value is None:
        found = f"{framework.name} takes an unknown fraction of the {sees}"
    else:
        found = f"{framework.name} takes {fraction.value:g} of the {sees}"
    hundredths = -(-100 * need_mib // visible)
    if not fraction.setting or hundredths * visible > 100 * (offer.memory_mib or 0):
        return f"{found}, and needs {format_mib(need_mib)}"
    return f"{found}, and needs {format_mib(need_mib)}; write {fraction.setting}={hundredths / 100:g}"
