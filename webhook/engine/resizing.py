"""Step 5 for a GPU pod that is resized while it runs: no way past the limits that held when it was created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.asking import PodGpuRequests
from webhook.engine.containers import container_amounts, containers_of_every_kind
from webhook.engine.limits import find_limit_violations
from webhook.engine.remarks import Violation
from webhook.engine.rules import MatchedPolicies
from webhook.engine.settle import record_findings
from webhook.model.effective import effective_amount, limit_or_request
from webhook.model.findings import Finding
from webhook.model.paths import FieldPath
from webhook.model.pods import Pod
from webhook.policy.compiled import AmountRuleSet, LimitRules, BoundedSet

_NO_AMOUNT_RULES = AmountRuleSet()


class PodResize(NamedTuple):
    """A pod before and after, and what it asks of GPUs: no resize changes that."""

    old: Pod
    new: Pod
    gpu_requests: PodGpuRequests


def evaluate_resize(resize: PodResize, rules: MatchedPolicies, findings: list[Finding]) -> None:
    """Every limit that a resize breaks.

    A pod that stood outside of one before, because the limit is younger, may stay where it is and come nearer.
    """
    for voice, limits in rules.limits:
        sections = rules.limits_by_mode[voice[0]]
        if _resize_breaches(limits, resize):
            remarks = [*_pod_resize_breaches(limits, resize, sections), *_container_resize_breaches(limits, resize, sections)]
            record_findings(findings, voice, remarks)


def _resize_breaches(limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...] = ()) -> list[Violation]:
    """What of the new amounts the section does not allow, GPUs aside."""
    pod = resize.new
    return find_limit_violations(limits, pod, resize.gpu_requests, container_amounts(pod.spec), gpus_aside=True, sections=sections)


def _pod_resize_breaches(limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]) -> Iterator[Violation]:
    """Breaches by what the pod takes together."""
    alone = replace(limits, per_container=_NO_AMOUNT_RULES, passed_checks=BoundedSet())
    for remark in _resize_breaches(alone, resize, sections):
        name = str(remark.path[-1])
        before, after = _pod_amounts(resize.old, name), _pod_amounts(resize.new, name)
        if any(_moves_further_outside(remark.code, *amounts) for amounts in zip(before, after, strict=True)):
            yield remark


def _container_resize_breaches(limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]) -> Iterator[Violation]:
    """Breaches by what a container takes."""
    alone = replace(limits, per_pod=_NO_AMOUNT_RULES, per_gpu=_NO_AMOUNT_RULES, passed_checks=BoundedSet())
    for remark in _resize_breaches(alone, resize, sections):
        before, after = _container_amount(resize.old, remark.path), _container_amount(resize.new, remark.path)
        if _moves_further_outside(remark.code, before, after):
            yield remark


def _pod_amounts(pod: Pod, name: str) -> tuple[int, int]:
    """Requests and limits of a pod, nano-units."""
    return effective_amount(pod, name), effective_amount(pod, name, limits=True)


def _container_amount(pod: Pod, path: FieldPath) -> int:
    """The limit, or else the request, of the container that a field stands in, nano-units; 0 where there is none."""
    found = (container for place, container in containers_of_every_kind(pod.spec) if place == path[:3])
    return next((limit_or_request(container.resources, str(path[-1])) for container in found), 0)


def _moves_further_outside(code: str, before: int, after: int) -> bool:
    """Does an amount outside of a limit go further from it, or come there only now?"""
    if code == "GPU-L103":
        return after > before
    if code == "GPU-L101":
        return after < before or not before
    return after != before
