"""Step 5 for a GPU pod that is resized while it runs: no way past the limits that held when it was created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.asking import Asked
from webhook.engine.containers import amounts_of, every_container
from webhook.engine.limits import breaches
from webhook.engine.remarks import Remark
from webhook.engine.rules import Rules
from webhook.engine.settle import hear
from webhook.model.effective import effective, limit_or_request
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.pods import Pod
from webhook.policy.compiled import AmountRules, Limits, Remembered

_NONE = AmountRules()


class Resize(NamedTuple):
    """A pod before and after, and what it asks of GPUs: no resize changes that."""

    old: Pod
    new: Pod
    asked: Asked


def judge_resize(resize: Resize, rules: Rules, findings: list[Finding]) -> None:
    """Every limit that a resize breaks.

    A pod that stood outside of one before, because the limit is younger, may stay where it is and come nearer.
    """
    for voice, limits in rules.limits:
        sections = rules.binding[voice[0]]
        if _breaches(limits, resize):
            remarks = [*_of_pod(limits, resize, sections), *_of_containers(limits, resize, sections)]
            hear(findings, voice, remarks)


def _breaches(limits: Limits, resize: Resize, sections: tuple[Limits, ...] = ()) -> list[Remark]:
    """What of the new amounts the section does not allow, GPUs aside."""
    pod = resize.new
    return breaches(limits, pod, resize.asked, amounts_of(pod.spec), gpus_aside=True, sections=sections)


def _of_pod(limits: Limits, resize: Resize, sections: tuple[Limits, ...]) -> Iterator[Remark]:
    """Breaches by what the pod takes together."""
    alone = replace(limits, per_container=_NONE, passed=Remembered())
    for remark in _breaches(alone, resize, sections):
        name = str(remark.path[-1])
        before, after = _of_all(resize.old, name), _of_all(resize.new, name)
        if any(_moves_away(remark.code, *amounts) for amounts in zip(before, after, strict=True)):
            yield remark


def _of_containers(limits: Limits, resize: Resize, sections: tuple[Limits, ...]) -> Iterator[Remark]:
    """Breaches by what a container takes."""
    alone = replace(limits, per_pod=_NONE, per_gpu=_NONE, passed=Remembered())
    for remark in _breaches(alone, resize, sections):
        before, after = _of_one(resize.old, remark.path), _of_one(resize.new, remark.path)
        if _moves_away(remark.code, before, after):
            yield remark


def _of_all(pod: Pod, name: str) -> tuple[int, int]:
    """Requests and limits of a pod, nano-units."""
    return effective(pod, name), effective(pod, name, limits=True)


def _of_one(pod: Pod, path: Path) -> int:
    """The limit, or else the request, of the container that a field stands in, nano-units; 0 where there is none."""
    found = (container for place, container in every_container(pod.spec) if place == path[:3])
    return next((limit_or_request(container.resources, str(path[-1])) for container in found), 0)


def _moves_away(code: str, before: int, after: int) -> bool:
    """Does an amount outside of a limit go further from it, or come there only now?"""
    if code == "GPU-L103":
        return after > before
    if code == "GPU-L101":
        return after < before or not before
    return after != before
