"""Step 3: what each container needs of a GPU, and on what evidence.

Three kinds of evidence are believed, in the order of the policy: what the pod declares, what its workload
was seen to use, and the policy's default. Without any there is no need, and nothing shrinks.
"""

from __future__ import annotations

from functools import lru_cache

from webhook.engine.asking import Ask
from webhook.engine.remarks import Remark
from webhook.errors import QuantityError
from webhook.model.decisions import Need
from webhook.model.modes import Evidence, Mode
from webhook.model.pods import Pod
from webhook.model.quantity import mebibytes, nano, written
from webhook.model.records import GPU_COMPUTE, GPU_MEMORY
from webhook.model.usage import Observed, UsageView
from webhook.model.workloads import workload_of
from webhook.policy.compiled import RightSizing

MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card; a larger declaration is a slip of the unit."""


class Declared:
    """What the pod's annotations say. `memory_mib` is None where it declares nothing readable."""

    __slots__ = ("compute_milli", "faults", "memory_mib", "text")

    def __init__(self, pod: Pod) -> None:
        annotations = pod.metadata.annotations
        self.text = annotations.get(GPU_MEMORY, "")
        self.memory_mib = _memory(self.text)
        compute = annotations.get(GPU_COMPUTE, "")
        self.compute_milli = _percent(compute)
        self.faults: tuple[Remark, ...] = ()
        if GPU_MEMORY in annotations and self.memory_mib is None:
            self.faults += (_unreadable(GPU_MEMORY, self.text, "an amount of memory such as 8Gi", "8Gi"),)
        if GPU_COMPUTE in annotations and self.compute_milli is None:
            self.faults += (_unreadable(GPU_COMPUTE, compute, "a percentage from 1% to 100%", "20%"),)


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


def need_of(
    asks: tuple[Ask, ...], pod: Pod, namespace: str, declared: Declared, rule: RightSizing, usage: UsageView
) -> Need | None:
    """The largest need among the containers that ask; None if one of them has no evidence."""
    for evidence in rule.evidence:
        if evidence is Evidence.DECLARED and declared.memory_mib is not None:
            return Need(declared.memory_mib, declared.compute_milli, evidence, f"{declared.text} declared")
        if evidence is Evidence.OBSERVED:
            seen = _observed(asks, namespace, workload_of(pod), rule, usage) if usage.observed else None
            if seen is not None:
                return seen
        if evidence is Evidence.DEFAULT and rule.default_memory_mib is not None:
            size = rule.default_memory_mib
            return Need(size, rule.default_compute_milli, evidence, f"{_binary(size)} by the policy's default")
    return None


def _observed(asks: tuple[Ask, ...], namespace: str, workload: str, rule: RightSizing, usage: UsageView) -> Need | None:
    seen: list[Observed] = []
    for ask in asks:
        use = usage.of(namespace, workload, ask.container.name)
        if use is None or use.preallocates:
            return None
        seen.append(use)
    memory = _with_margin(max(use.memory_mib for use in seen), rule.margin_percent)
    known = [use.compute_milli for use in seen if use.compute_milli is not None]
    compute = min(1000, _with_margin(max(known), rule.margin_percent)) if known else None
    words = f"{_binary(memory)} from observed use with {rule.margin_percent}% margin"
    return Need(memory, compute, Evidence.OBSERVED, words)


def _with_margin(amount: int, percent: int) -> int:
    """Add a margin and round up, in integers."""
    return -(-amount * (100 + percent) // 100)


def _binary(mebibyte: int) -> str:
    return written(mebibyte * nano("1Mi"))
