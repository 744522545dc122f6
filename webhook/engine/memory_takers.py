"""Whether a framework that takes a fraction of the memory it sees fits a smaller GPU.

Such a framework sees the memory of its MIG slice, but on a shared card that of the whole card. Time-slicing limits
nothing, so it would take other pods' memory. MPS ends it at the limit of its share. On a slice, the fraction must cover
the need.

If it does not, the reason has the fraction that would. A policy can write it into the pod (`memoryFraction: patch`): it
replaces a number that the container states once, or is added as a variable.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.engine.pod_context import GpuPodContext
from webhook.model.decisions import FractionChange, KeepReason, KeepRequest
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.field_paths import FieldPath
from webhook.model.offers import GpuOffer
from webhook.model.pods import Container
from webhook.model.preallocation import (
    MemoryFraction,
    PreallocatingFramework,
    fraction_argument,
    is_fraction,
    memory_fraction,
    preallocating_framework,
)
from webhook.model.quantity import format_mib
from webhook.model.workloads import workload_of

CONSTANT_USAGE = "its usage is constantly close to the whole GPU"


def framework_of(container: Container) -> PreallocatingFramework | None:
    """Return the framework in a container that allocates memory it may not need."""
    return preallocating_framework(container.image, container.command + container.args, _variables(container))


def reason_by_framework(
    context: GpuPodContext, offers: tuple[GpuOffer, ...], need_mib: int, *, patch: bool
) -> KeepRequest | None:
    """Return why a framework of the pod cannot use one unit of these offers of one form; None if it can.

    Args:
        patch: True if its memory fraction may be changed.
    """
    if offers[0].form is GpuForm.WHOLE:
        return None
    limited = offers[0].isolation > IsolationLevel.NONE
    for path, container in context.gpu_requests.containers.items():
        framework = framework_of(container)
        if framework is None or not framework.takes_visible:
            if not limited and _fills_its_gpu(context, container):
                return KeepRequest(KeepReason.NO_MEMORY_LIMIT, CONSTANT_USAGE)
            continue
        if not limited:
            return KeepRequest(KeepReason.NO_MEMORY_LIMIT, framework.name)
        reason = _reason_by_fraction(framework, container, offers, need_mib)
        if reason is not None and not (patch and _change_fraction(path, container, framework, offers, need_mib)):
            return reason
    return None


def memory_fraction_changes(
    context: GpuPodContext, offers: tuple[GpuOffer, ...], need_mib: int
) -> tuple[FractionChange, ...]:
    """Return the changes by which the frameworks of a pod can use one unit of these offers; none where they can."""
    changes = (
        _change_fraction(path, container, framework, offers, need_mib)
        for path, container in context.gpu_requests.containers.items()
        if (framework := framework_of(container)) is not None
        and framework.takes_visible
        and _reason_by_fraction(framework, container, offers, need_mib) is not None
    )
    return tuple(filter(None, changes))


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
    fraction = _fraction_of(framework, container)
    for offer in offers:
        limit, visible = _limit_and_visible(offer)
        if framework.of_free and offer.replicas > 1:
            fraction = fraction._replace(value=None)
        if not _is_suitable(fraction, visible, need_mib, limit, shared=offer.replicas > 1):
            return KeepRequest(KeepReason.MEMORY_FRACTION, _advice(framework, fraction, offer, visible, need_mib))
    return None


def _fraction_of(framework: PreallocatingFramework, container: Container) -> MemoryFraction:
    """Return the fraction that a framework takes; without a value if an `envFrom`, which nobody can read, may set it.

    A variable in `env` overrides those of `envFrom`.
    """
    fraction = memory_fraction(framework, container.command + container.args, _variables(container))
    variables = [name for name in framework.fractions if name.isidentifier()]
    prefixes = tuple(source.prefix for source in container.env_from)
    if fraction.stated or not any(name.startswith(prefixes) for name in variables):
        return fraction
    return fraction._replace(value=None, stated=1)


def _limit_and_visible(offer: GpuOffer) -> tuple[int, int]:
    """Return the memory that a pod may use of one unit, and the memory that it sees."""
    limit = offer.memory_mib or 0
    return limit, limit * offer.replicas if offer.form is GpuForm.MPS else limit


def _is_suitable(fraction: MemoryFraction, visible: int, need: int, limit: int, *, shared: bool) -> bool:
    """Return whether a fraction of the visible memory is between need and limit.

    The unknown default of a framework is most of what it sees, which suits a slice. What a container states and nobody
    can read here may be too little.
    """
    if fraction.value is None:
        return not shared and not fraction.stated
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
    suitable = _suitable_fraction((offer,), need_mib)
    if not fraction.setting or not suitable:
        return f"{found}, and needs {format_mib(need_mib)}"
    return f"{found}, and needs {format_mib(need_mib)}; write {fraction.setting}={suitable}"


def _suitable_fraction(offers: tuple[GpuOffer, ...], need_mib: int) -> str:
    """Return the smallest fraction, in hundredths, that covers the need on every offer; "" if it exceeds a limit."""
    sizes = [_limit_and_visible(offer) for offer in offers]
    hundredths = max(-(-100 * need_mib // visible) for _, visible in sizes)
    within = all(hundredths * visible <= 100 * limit for limit, visible in sizes)
    return f"{hundredths / 100:g}" if within else ""


def _change_fraction(
    path: FieldPath,
    container: Container,
    framework: PreallocatingFramework,
    offers: tuple[GpuOffer, ...],
    need_mib: int,
) -> FractionChange | None:
    """Return the change to a fraction that suits the offers; None if there is none, or it cannot be written safely.

    A number that is stated once is replaced. A variable is added if neither the container nor an `envFrom` can set the
    fraction. Nothing else is touched.
    """
    fraction = _fraction_of(framework, container)
    setting, after = fraction.setting, _suitable_fraction(offers, need_mib)
    if not after or not setting or (framework.of_free and offers[0].replicas > 1):
        return None
    if not fraction.stated:
        return FractionChange(container.name, (*path, "env"), setting, after) if setting.isidentifier() else None
    if fraction.stated > 1 or fraction.value is None:
        return None
    for index, variable in enumerate(container.env):
        if variable.name == setting and variable.value_from is None and is_fraction(variable.value):
            target = (*path, "env", index, "value")
            return FractionChange(container.name, target, setting, after, before=variable.value)
    for field, arguments in (("args", container.args), ("command", container.command)):
        if (found := fraction_argument(arguments, setting)) is not None:
            index, prefix = found
            before = arguments[index].removeprefix(prefix)
            return FractionChange(container.name, (*path, field, index), setting, after, prefix, before)
    return None
