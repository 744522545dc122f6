"""Annotations by which a pod requests a fraction of a GPU from KAI Scheduler or Run:ai, and the need that they state.

KAI admits no pod that has such an annotation and requests whole GPUs too, but one that requests a MIG instance too, and
charges it for both. So the GPU request of such a pod is never replaced. The default scheduler ignores the annotations:
there they only state what the pod needs.

Source: KAI Scheduler 0.18, `ValidateGPUFractionRequest` and `ParsePodGPUFractionRequest` of `pkg/common/resources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.batch import KAI, sign_of_system
from webhook.model.pods import Pod
from webhook.model.quantity import parse_nano, parse_nano_or_none
from webhook.model.schedulers import DEFAULT_SCHEDULER

FRACTION_ANNOTATION, MEMORY_ANNOTATION = "gpu-fraction", "gpu-memory"
"""Share of a card, such as "0.5", and memory in MiB."""

FRACTION_ANNOTATIONS = (FRACTION_ANNOTATION, MEMORY_ANNOTATION)
"""Annotations of a pod. Schedulers other than KAI and Run:ai ignore them."""

CONTAINER_PREFIX = "nvidia.com/container."
"""Prefix of the annotations of one container, since KAI 0.17."""

_CONTAINER_ANNOTATION = re.compile(re.escape(CONTAINER_PREFIX) + r".*\.gpu-memory\.(request|limit)")
DEFAULT_SCHEDULERS = ("", DEFAULT_SCHEDULER)
"""Values of spec.schedulerName of pods whose scheduler ignores these annotations."""

MIN_MEMORY_MIB = 1024
"""A smaller number is not believed to be MiB where KAI did not read it: users write 16 for 16 GiB."""


class FractionNeed(NamedTuple):
    """The need that an annotation for KAI states.

    Attributes:
        text: The annotation and its value.
        memory_mib: None if it states none.
        compute_milli: None if it states none.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None


NO_FRACTION = FractionNeed()


def fraction_annotations(keys: Iterable[str]) -> list[str]:
    """Return those annotations that request a fraction of a GPU."""
    return [
        key
        for key in keys
        if key in FRACTION_ANNOTATIONS or (key.startswith(CONTAINER_PREFIX) and _CONTAINER_ANNOTATION.fullmatch(key))
    ]


def requested_fraction(pod: Pod) -> str:
    """Return the annotation by which a pod requests a fraction from its scheduler; "" for none."""
    found = fraction_annotations(pod.metadata.annotations)
    if not found or (pod.spec.scheduler_name in DEFAULT_SCHEDULERS and not sign_of_system(pod, KAI)):
        return ""
    return found[0]


def fraction_need(pod: Pod, card_mib: int | None) -> FractionNeed:
    """Return the need that a pod states by annotations for KAI.

    Args:
        card_mib: Memory of the largest card that the fraction may be meant of; None if unknown.
    """
    annotations = pod.metadata.annotations
    memory, fraction = annotations.get(MEMORY_ANNOTATION, ""), annotations.get(FRACTION_ANNOTATION, "")
    if memory.isascii() and memory.isdecimal() and len(memory) < 10 and int(memory) >= MIN_MEMORY_MIB:
        return FractionNeed(f"{MEMORY_ANNOTATION} {memory}Mi", int(memory))
    milli = _parse_fraction_milli(fraction)
    if milli is None or card_mib is None:
        return NO_FRACTION
    return FractionNeed(f"{FRACTION_ANNOTATION} {fraction[:20]}", -(-card_mib * milli // 1000), milli)


def unreadable_fractions(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield annotations for KAI that are no number, each with what it must be and an example."""
    memory, fraction = annotations.get(MEMORY_ANNOTATION, "1"), annotations.get(FRACTION_ANNOTATION, "1")
    if not (memory.isascii() and memory.isdecimal()):
        yield MEMORY_ANNOTATION, "a whole number of MiB", "8192"
    if parse_nano_or_none(fraction) is None:
        yield FRACTION_ANNOTATION, "a share of a GPU, between 0 and 1", "0.5"


def _parse_fraction_milli(text: str) -> int | None:
    """Return thousandths of a share such as "0.5", rounded up."""
    try:
        milli = -(-parse_nano(text) // 1_000_000) if text else 0
    except QuantityError:
        return None
    return milli if 0 < milli < 1000 else None
