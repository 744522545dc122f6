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

from webhook.engine.asking import Ask
from webhook.engine.remarks import Remark
from webhook.engine.rungs import rung, said
from webhook.errors import QuantityError
from webhook.model.decisions import Keep, Need, Why
from webhook.model.modes import Evidence, Mode
from webhook.model.pods import Container, Pod
from webhook.model.preallocation import takes_all
from webhook.model.quantity import mebibytes, nano, written
from webhook.model.records import GPU_COMPUTE, GPU_MEMORY, KEEP
from webhook.model.usage import Observed, UsageView
from webhook.policy.compiled import RightSizing

MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card; a larger declaration is a slip of the unit."""


class Declared(msgspec.Struct, frozen=True, gc=False):
    """What a pod's annotations say of its need.

    Attributes:
        text: Its memory as it was written.
        memory_mib: None where nothing readable is declared; so `compute_milli`.
        faults: What cannot be read.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None
    faults: tuple[Remark, ...] = ()


NOTHING_DECLARED = Declared()


KEPT = ("true", "false")


def misread_keep(pod: Pod) -> tuple[Remark, ...]:
    """A way out that is written in other words: it is taken, since the user plainly wanted something."""
    said = pod.metadata.annotations.get(KEEP, "true")
    if said in KEPT:
        return ()
    message = f'must be "true" or "false" (found {said[:60]!r}); the pod keeps what it asks for'
    return (Remark("GPU-R104", ("metadata", "annotations", KEEP), message, f'Write {KEEP}: "true".', Mode.WARN),)


def declared_by(pod: Pod) -> Declared:
    """Read what a pod declares."""
    annotations = pod.metadata.annotations
    if GPU_MEMORY not in annotations and GPU_COMPUTE not in annotations:
        return NOTHING_DECLARED
    text, compute = annotations.get(GPU_MEMORY, ""), annotations.get(GPU_COMPUTE, "")
    memory_mib, compute_milli = _memory(text), _percent(compute)
    faults: list[Remark] = []
    if GPU_MEMORY in annotations and memory_mib is None:
        faults.append(_unreadable(GPU_MEMORY, text, "1Mi to 16Ti of GPU memory", "8Gi"))
    if GPU_COMPUTE in annotations and compute_milli is None:
        faults.append(_unreadable(GPU_COMPUTE, compute, "a percentage from 1% to 100%", "20%"))
    return Declared(text, memory_mib, compute_milli, tuple(faults))


@lru_cache(maxsize=64)
def _memory(text: str) -> int | None:
    try:
        size = mebibytes(text) if text else 0
    except QuantityError:
        return None
    return size if 0 < size <= MAX_MEMORY_MIB and nano(text) >= nano("1Mi") else None


@lru_cache(maxsize=64)
def _percent(text: str) -> int | None:
    """Thousandths from "20%" (also "12.5%")."""
    if not text.endswith("%") or not text.isascii():
        return None
    try:
        share = -(-nano(text[:-1].strip()) // 100_000_000)
    except QuantityError:
        return None
    return share if 0 < share <= 1000 else None


def _unreadable(key: str, found: str, must: str, example: str) -> Remark:
    return Remark(
        "GPU-R104",
        ("metadata", "annotations", key),
        f"must be {must} (found {found[:60]!r})",
        f'Write {key}: "{example}".',
        at_most=Mode.WARN,
    )


NO_EVIDENCE = Keep(Why.NO_EVIDENCE)


class Sought(msgspec.Struct, frozen=True, gc=False):
    """Who needs, and what it may be given.

    Attributes:
        asks: The pod's containers that ask.
        workload: Its owner.
        sizes: Gives the sizes on offer, MiB, ascending; asked only where use was seen.
    """

    asks: tuple[Ask, ...]
    namespace: str
    workload: str
    rule: RightSizing
    sizes: Callable[[], tuple[int, ...]]


def has_evidence(declared: Declared, usage: UsageView, rule: RightSizing) -> bool:
    """May anything say what a pod needs?"""
    return declared.memory_mib is not None or bool(usage.observed) or rule.default_memory_mib is not None


def need_of(sought: Sought, declared: Declared, usage: UsageView) -> Need | Keep:
    """The largest need among the containers that ask, or why none of the evidence says one."""
    seen = [usage.of(sought.namespace, sought.workload, ask.container.name) for ask in sought.asks]
    for use in seen:
        if use is not None and use.blocked:
            return Keep(Why.BLOCKED, use.blocked)
    why = NO_EVIDENCE
    for evidence in sought.rule.evidence:
        if evidence is Evidence.DEFAULT and why.why is Why.RISK:
            continue  # enough was seen to say that nothing smaller will do
        found = _by(evidence, sought, declared, seen, usage)
        if isinstance(found, Need):
            return found
        why = found or why
    return why


def _by(
    evidence: Evidence, sought: Sought, declared: Declared, seen: list[Observed | None], usage: UsageView
) -> Need | Keep | None:
    """The need by one kind of evidence; None where it is silent."""
    rule = sought.rule
    if evidence is Evidence.DECLARED and declared.memory_mib is not None:
        return Need(declared.memory_mib, declared.compute_milli, evidence, f"{declared.text} declared")
    if evidence is Evidence.OBSERVED:
        return _observed(sought, seen, usage) if any(seen) else None
    if evidence is Evidence.DEFAULT and rule.default_memory_mib is not None:
        return _default(sought, seen, rule.default_memory_mib)
    return None


def _observed(sought: Sought, seen: list[Observed | None], usage: UsageView) -> Need | Keep:
    rule = sought.rule
    price_milli = usage.price_milli(rule.risk_ppm)
    sizes: list[tuple[int, Observed]] = []
    for ask, use in zip(sought.asks, seen, strict=True):
        if use is None:
            return Keep(Why.NO_EVIDENCE, f"its container {ask.container.name[:63]} was never seen")
        habit = _habit(ask.container, use)
        if habit:
            return Keep(Why.PREALLOCATES, habit)
        size = rung(use, sought.sizes(), price_milli, rule.risk_ppm)
        if isinstance(size, Keep):
            return size
        sizes.append((size, use))
    largest, of = max(sizes, key=itemgetter(0))
    compute = _compute(seen, rule)
    words = said(of, largest)
    if compute is None:
        words += "; what it needs of compute was not seen"
    return Need(largest, compute, Evidence.OBSERVED, words)


def _default(sought: Sought, seen: list[Observed | None], size: int) -> Need | Keep:
    """The policy's default, which speaks for what was never seen: not against what was, nor for a habit."""
    rule = sought.rule
    for ask, use in zip(sought.asks, seen, strict=True):
        habit = _habit(ask.container, use)
        if habit:
            return Keep(Why.PREALLOCATES, habit)
        against = _against(size, use, rule.risk_ppm) if use is not None else ""
        if against:
            return Keep(Why.DEFAULT_TOO_SMALL, f"{_binary(size)}, {against}")
    compute = max(rule.default_compute_milli or 0, _compute(seen, rule) or 0) or None
    return Need(size, compute, Evidence.DEFAULT, f"{_binary(size)} by the policy's default")


def _against(size: int, use: Observed, most_ppm: int) -> str:
    """What was seen that speaks against a size, in words; "" where nothing does."""
    if use.memory_mib > size:
        return f"and {_binary(use.memory_mib)} seen"
    risk_ppm = use.risk_ppm(size) if use.sizes_mib else 0
    return f"at {risk_ppm / 10_000:g}% risk an hour" if risk_ppm > most_ppm else ""


def _compute(seen: list[Observed | None], rule: RightSizing) -> int | None:
    """What was seen of compute, with the margin."""
    known = [use.compute_milli for use in seen if use is not None and use.compute_milli is not None]
    return min(1000, _with_margin(max(known), rule.margin_percent)) if known else None


def _habit(container: Container, use: Observed | None) -> str:
    """What a container takes of memory whether it needs it or not, by its framework or by its use; "" if nothing."""
    variables = [(variable.name, variable.value) for variable in container.env] if container.env else ()
    framework = takes_all(container.image, container.command + container.args, variables)
    return framework or ("nearly all of its GPU, and never less" if use is not None and use.preallocates else "")


def _with_margin(amount: int, percent: int) -> int:
    """Add a margin and round up, in integers."""
    return -(-amount * (100 + percent) // 100)


def _binary(mebibyte: int) -> str:
    return written(mebibyte * nano("1Mi"))
