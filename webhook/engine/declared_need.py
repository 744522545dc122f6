"""The GPU need that a pod declares in its annotations, and its opt-out."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from webhook.engine.violations import Violation
from webhook.errors import QuantityError
from webhook.model.annotations import GPU_COMPUTE_ANNOTATION, GPU_MEMORY_ANNOTATION, KEEP_ANNOTATION
from webhook.model.enums import PolicyMode
from webhook.model.pods import Pod
from webhook.model.quantity import parse_mebibytes, parse_nano

MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card has; a larger declaration has a wrong unit."""


class DeclaredNeed(msgspec.Struct, frozen=True, gc=False):
    """The GPU need that a pod's annotations declare.

    Attributes:
        text: The memory as written.
        memory_mib: None if nothing readable is declared; likewise `compute_milli`.
        errors: Annotations that cannot be parsed.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None
    errors: tuple[Violation, ...] = ()


NOTHING_DECLARED = DeclaredNeed()

KEEP_VALUES = ("true", "false")


def invalid_keep_annotation(pod: Pod) -> tuple[Violation, ...]:
    """Report an opt-out annotation with another value. It counts as an opt-out, because that was the intention."""
    value = pod.metadata.annotations.get(KEEP_ANNOTATION, "true")
    if value in KEEP_VALUES:
        return ()
    message = f'must be "true" or "false" (found {value[:60]!r}); the pod keeps its request'
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
    """Parse the GPU need that a pod declares."""
    annotations = pod.metadata.annotations
    if GPU_MEMORY_ANNOTATION not in annotations and GPU_COMPUTE_ANNOTATION not in annotations:
        return NOTHING_DECLARED
    text, compute = annotations.get(GPU_MEMORY_ANNOTATION, ""), annotations.get(GPU_COMPUTE_ANNOTATION, "")
    memory_mib, compute_milli = _parse_memory_mib(text), _parse_percent_milli(compute)
    errors: list[Violation] = []
    if GPU_MEMORY_ANNOTATION in annotations and memory_mib is None:
        errors.append(_unreadable_annotation(GPU_MEMORY_ANNOTATION, text, "1Mi to 16Ti of GPU memory", "8Gi"))
    if GPU_COMPUTE_ANNOTATION in annotations and compute_milli is None:
        errors.append(_unreadable_annotation(GPU_COMPUTE_ANNOTATION, compute, "a percentage from 1% to 100%", "20%"))
    return DeclaredNeed(text, memory_mib, compute_milli, tuple(errors))


@lru_cache(maxsize=64)
def _parse_memory_mib(text: str) -> int | None:
    try:
        size = parse_mebibytes(text) if text else 0
    except QuantityError:
        return None
    return size if 0 < size <= MAX_MEMORY_MIB and parse_nano(text) >= parse_nano("1Mi") else None


@lru_cache(maxsize=64)
def _parse_percent_milli(text: str) -> int | None:
    """Return thousandths of "20%" or "12.5%"."""
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
