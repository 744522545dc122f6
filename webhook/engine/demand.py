"""Step 3: what each container needs of a GPU, and on what evidence.

Three kinds of evidence are believed, in the order of the policy: what the pod declares, what its workload
was seen to use, and the policy's default, which never speaks against what was seen. Without any there is no need, and
nothing shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

import msgspec

from webhook.engine.gpu_requests import GpuRequest
from webhook.engine.violations import Violation
from webhook.errors import QuantityError
from webhook.model.annotations import GPU_COMPUTE_ANNOTATION, GPU_MEMORY_ANNOTATION, KEEP_ANNOTATION
from webhook.model.decisions import GpuNeed, KeepReason, KeepRequest
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.pods import Container, Pod
from webhook.model.preallocation import preallocating_framework
from webhook.model.quantity import format_nano, parse_mebibytes, parse_nano
from webhook.model.usage import CERTAIN_PPM, ObservedUsage, UsageView
from webhook.policy.policy_set import RightSizingRules

_COST_UNIT = 1000 * CERTAIN_PPM
"""What costs are counted in: thousandths of a pod-hour, times risk in ppm."""

SIZE_CACHE = 1024
"""Choices that are kept, for the pods of one workload that come one after another."""


MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card; a larger declaration is a slip of the unit."""


class DeclaredNeed(msgspec.Struct, frozen=True, gc=False):
    """What a pod's annotations say of its need.

    Attributes:
        text: Its memory as it was written.
        memory_mib: None where nothing readable is declared; so `compute_milli`.
        faults: What cannot be read.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None
    errors: tuple[Violation, ...] = ()


NOTHING_DECLARED = DeclaredNeed()


KEEP_VALUES = ("true", "false")


def invalid_keep_annotation(pod: Pod) -> tuple[Violation, ...]:
    """A way out that is written in other words: it is taken, since the user plainly wanted something."""
    said = pod.metadata.annotations.get(KEEP_ANNOTATION, "true")
    if said in KEEP_VALUES:
        return ()
    message = f'must be "true" or "false" (found {said[:60]!r}); the pod keeps what it asks for'
    return (
        Violation(
            "GPU-R104",
            ("metadata", "annotations", KEEP_ANNOTATION),
            message,
            f'Write {KEEP_ANNOTATION}: "true".',
            PolicyMode.WARN,
        ),
    )


def declared_need_of(pod: Pod) -> DeclaredNeed:
    """Read what a pod declares."""
    annotations = pod.metadata.annotations
    if GPU_MEMORY_ANNOTATION not in annotations and GPU_COMPUTE_ANNOTATION not in annotations:
        return NOTHING_DECLARED
    text, compute = annotations.get(GPU_MEMORY_ANNOTATION, ""), annotations.get(GPU_COMPUTE_ANNOTATION, "")
    memory_mib, compute_milli = _parse_memory_mib(text), _parse_percent_milli(compute)
    faults: list[Violation] = []
    if GPU_MEMORY_ANNOTATION in annotations and memory_mib is None:
        faults.append(_unreadable_annotation(GPU_MEMORY_ANNOTATION, text, "1Mi to 16Ti of GPU memory", "8Gi"))
    if GPU_COMPUTE_ANNOTATION in annotations and compute_milli is None:
        faults.append(_unreadable_annotation(GPU_COMPUTE_ANNOTATION, compute, "a percentage from 1% to 100%", "20%"))
    return DeclaredNeed(text, memory_mib, compute_milli, tuple(faults))


@lru_cache(maxsize=64)
def _parse_memory_mib(text: str) -> int | None:
    try:
        size = parse_mebibytes(text) if text else 0
    except QuantityError:
        return None
    return size if 0 < size <= MAX_MEMORY_MIB and parse_nano(text) >= parse_nano("1Mi") else None


@lru_cache(maxsize=64)
def _parse_percent_milli(text: str) -> int | None:
    """Thousandths from "20%" (also "12.5%")."""
    if not text.endswith("%") or not text.isascii():
        return None
    try:
        share = -(-parse_nano(text[:-1].strip()) // 100_000_000)
    except QuantityError:
        return None
    return share if 0 < share <= 1000 else None


def _unreadable_annotation(key: str, found: str, must: str, example: str) -> Violation:
    return Violation(
        "GPU-R104",
        ("metadata", "annotations", key),
        f"must be {must} (found {found[:60]!r})",
        f'Write {key}: "{example}".',
        at_most=PolicyMode.WARN,
    )


NO_EVIDENCE = KeepRequest(KeepReason.NO_EVIDENCE)


class DemandInput(msgspec.Struct, frozen=True, gc=False):
    """Who needs, and what it may be given.

    Attributes:
        asks: The pod's containers that ask.
        workload: Its owner.
        sizes: Gives the sizes on offer, MiB, ascending; asked only where use was seen.
    """

    requests: tuple[GpuRequest, ...]
    namespace: str
    workload: str
    rule: RightSizingRules
    sizes: Callable[[], tuple[int, ...]]


def has_demand_evidence(declared: DeclaredNeed, usage: UsageView, rule: RightSizingRules) -> bool:
    """May anything say what a pod needs?"""
    return declared.memory_mib is not None or bool(usage.observed) or rule.default_memory_mib is not None


def estimate_need(sought: DemandInput, declared: DeclaredNeed, usage: UsageView) -> GpuNeed | KeepRequest:
    """The largest need among the containers that ask, or why none of the evidence says one."""
    seen = [usage.find(sought.namespace, sought.workload, ask.container.name) for ask in sought.requests]
    for use in seen:
        if use is not None and use.blocked_reason:
            return KeepRequest(KeepReason.RECENT_FAILURE, use.blocked_reason)
    why = NO_EVIDENCE
    for evidence in sought.rule.evidence:
        if evidence is EvidenceSource.DEFAULT and why.reason is KeepReason.RISK_TOO_HIGH:
            continue  # enough was seen to say that nothing smaller will do
        found = _need_by_evidence(evidence, sought, declared, seen, usage)
        if isinstance(found, GpuNeed):
            return found
        why = found or why
    return why


def _need_by_evidence(
    evidence: EvidenceSource,
    sought: DemandInput,
    declared: DeclaredNeed,
    seen: list[ObservedUsage | None],
    usage: UsageView,
) -> GpuNeed | KeepRequest | None:
    """The need by one kind of evidence; None where it is silent."""
    rule = sought.rule
    if evidence is EvidenceSource.DECLARED and declared.memory_mib is not None:
        return GpuNeed(declared.memory_mib, declared.compute_milli, evidence, f"{declared.text} declared")
    if evidence is EvidenceSource.OBSERVED:
        return _need_from_usage(sought, seen, usage) if any(seen) else None
    if evidence is EvidenceSource.DEFAULT and rule.default_memory_mib is not None:
        return _need_from_default(sought, seen, rule.default_memory_mib)
    return None


def _need_from_usage(sought: DemandInput, seen: list[ObservedUsage | None], usage: UsageView) -> GpuNeed | KeepRequest:
    rule = sought.rule
    price_milli = usage.price_milli(rule.risk_ppm)
    sizes: list[tuple[int, ObservedUsage]] = []
    for ask, use in zip(sought.requests, seen, strict=True):
        if use is None:
            return KeepRequest(KeepReason.NO_EVIDENCE, f"its container {ask.container.name[:63]} was never seen")
        habit = _preallocation_reason(ask.container, use)
        if habit:
            return KeepRequest(KeepReason.PREALLOCATES, habit)
        size = choose_size(use, sought.sizes(), price_milli, rule.risk_ppm)
        if isinstance(size, KeepRequest):
            return size
        sizes.append((size, use))
    largest, of = max(sizes, key=itemgetter(0))
    compute = _observed_compute(seen, rule)
    words = describe_size(of, largest)
    if compute is None:
        words += "; what it needs of compute was not seen"
    return GpuNeed(largest, compute, EvidenceSource.OBSERVED, words)


def _need_from_default(sought: DemandInput, seen: list[ObservedUsage | None], size: int) -> GpuNeed | KeepRequest:
    """The policy's default, which speaks for what was never seen: not against what was, nor for a habit."""
    rule = sought.rule
    for ask, use in zip(sought.requests, seen, strict=True):
        habit = _preallocation_reason(ask.container, use)
        if habit:
            return KeepRequest(KeepReason.PREALLOCATES, habit)
        against = _evidence_against(size, use, rule.risk_ppm) if use is not None else ""
        if against:
            return KeepRequest(KeepReason.DEFAULT_TOO_SMALL, f"{_format_mib(size)}, {against}")
    compute = max(rule.default_compute_milli or 0, _observed_compute(seen, rule) or 0) or None
    return GpuNeed(size, compute, EvidenceSource.DEFAULT, f"{_format_mib(size)} by the policy's default")


def _evidence_against(size: int, use: ObservedUsage, most_ppm: int) -> str:
    """What was seen that speaks against a size, in words; "" where nothing does."""
    if use.memory_mib > size:
        return f"and {_format_mib(use.memory_mib)} seen"
    risk_ppm = use.risk_ppm(size) if use.sizes_mib else 0
    return f"at {risk_ppm / 10_000:g}% risk an hour" if risk_ppm > most_ppm else ""


def _observed_compute(seen: list[ObservedUsage | None], rule: RightSizingRules) -> int | None:
    """What was seen of compute, with the margin."""
    known = [use.compute_milli for use in seen if use is not None and use.compute_milli is not None]
    return min(1000, _add_margin(max(known), rule.margin_percent)) if known else None


def _preallocation_reason(container: Container, use: ObservedUsage | None) -> str:
    """What a container takes of memory whether it needs it or not, by its framework or by its use; "" if nothing."""
    variables = [(variable.name, variable.value) for variable in container.env] if container.env else ()
    framework = preallocating_framework(container.image, container.command + container.args, variables)
    return framework or ("nearly all of its GPU, and never less" if use is not None and use.preallocates else "")


def _add_margin(amount: int, percent: int) -> int:
    """Add a margin and round up, in integers."""
    return -(-amount * (100 + percent) // 100)


def _format_mib(mebibyte: int) -> str:
    return format_nano(mebibyte * parse_nano("1Mi"))


@lru_cache(maxsize=SIZE_CACHE)
def choose_size(use: ObservedUsage, sizes: tuple[int, ...], price_milli: int, most_ppm: int) -> int | KeepRequest:
    """The cheapest size whose risk is bearable, MiB; the least that would be where no offer has one; or why none is.

    Args:
        use: What was seen.
        sizes: MiB that some offer has, ascending.
        price_milli: Price of running out once, thousandths of an hour of an unused card.
        most_ppm: Pod-hours in a million that may need more.
    """
    if not use.sizes_mib:
        return KeepRequest(KeepReason.SHORT_HISTORY)
    costs = [
        (_size_cost(use, size, risk, price_milli), size) for size in sizes if (risk := use.risk_ppm(size)) <= most_ppm
    ]
    if not costs:
        return use.size_mib(most_ppm)
    cost, best = min(costs)
    whole = -(_COST_UNIT * use.typical_mib // max(use.card_mib, best + 1))
    return best if cost < whole else KeepRequest(KeepReason.RISK_TOO_HIGH, describe_size(use, best))


def _size_cost(use: ObservedUsage, size: int, risk_ppm: int, price_milli: int) -> int:
    return price_milli * risk_ppm - _COST_UNIT * use.typical_mib // size


@lru_cache(maxsize=SIZE_CACHE)
def describe_size(use: ObservedUsage, size: int) -> str:
    """A size, its stated risk, and what stands behind it."""
    amount = f"{size}Mi" if size % 1024 else f"{size // 1024}Gi"
    risk = f"{use.risk_ppm(size) / 10_000:g}%"
    windows = f"{use.samples} windows of {use.horizon_hours} h of its {use.pool}"
    return f"{amount} from observed use with {risk} risk an hour, by {windows}"
