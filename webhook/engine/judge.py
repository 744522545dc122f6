"""Steps 2 and 5: what a pod may not do, may not ask for, and will not get. Judged on the shape it will have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from webhook.engine.case import Case
from webhook.engine.cuda import driver_remarks
from webhook.engine.guard import guard
from webhook.engine.limitrange import Amounts, injected, refusals
from webhook.engine.limits import breaches
from webhook.engine.placement import obstacles
from webhook.engine.quota import excesses
from webhook.engine.remarks import Remark
from webhook.engine.settle import Voice, heard
from webhook.engine.shape import Shape
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.policy.compiled import Limits


def refusals_of_security(case: Case) -> list[Finding]:
    """Every way round GPU accounting that a policy denies."""
    sections = [(policy.name, policy.security) for policy in case.policies if policy.security]
    if not sections:
        return []
    asks_gpus = bool(case.asked.asks or case.asked.strangers)
    findings: list[Finding] = []
    for name, section in sections:
        bypasses = guard(
            case.request,
            case.pod,
            asks_gpus=asks_gpus,
            asks_share=asks_gpus and case.pod.spec.share_process_namespace and case.asks_share,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypasses:
            findings += heard((section.mode, name), [remark for bypass, remark in bypasses if bypass in section.deny])
    return findings


def judge(case: Case, shape: Shape) -> list[Finding]:
    """Everything a GPU pod may not ask for or will not get."""
    if not case.asked.asks:
        return []
    findings: list[Finding] = []
    for policy in case.policies:
        if policy.limits is not None:
            findings += heard((policy.limits.mode, policy.name), _limits(policy.limits, case, shape))
        if policy.cuda is not None and policy.cuda.driver:
            offers = shape.fit.offers if shape.fit else case.offers
            findings += heard((policy.cuda.mode, policy.name), driver_remarks(case.pod, offers))
    voice = _widest_voice(case)
    findings += heard(voice, case.asked.faults)
    if shape.fit is None:
        findings += heard(voice, obstacles(case.pod, case.asked, case.declared, case.reach))
    return findings


def _widest_voice(case: Case) -> Voice:
    """Who says what holds for every GPU pod: the strictest policy that speaks, by its topology section or itself."""
    voices = [(policy.topology.mode if policy.topology else policy.mode, policy.name) for policy in case.policies]
    return max(voices, key=lambda voice: voice[0], default=(Mode.AUDIT, ""))


def _limits(limits: Limits, case: Case, shape: Shape) -> Iterator[Remark]:
    if shape.fit is None:
        yield from breaches(limits, case.pod, case.asked)
    totals = totals_of(case, shape)
    if limits.limit_ranges:
        yield from _limit_ranges(case, shape, totals)
    if limits.resource_quotas:
        yield from excesses(case.view.quotas(case.request.namespace), case.pod, totals)


def totals_of(case: Case, shape: Shape) -> Mapping[str, int]:
    """GPU totals by name once the pod has its shape."""
    if shape.fit is None:
        return case.asked.totals
    return {shape.fit.resource: sum(case.asked.totals.values())}


def _limit_ranges(case: Case, shape: Shape, totals: Mapping[str, int]) -> Iterator[Remark]:
    ranges = case.view.limit_ranges(case.request.namespace)
    if not ranges:
        return
    for ask in case.asked.asks:
        resources, name = ask.container.resources, ask.resource.name
        if injected(case.pod, ask.container.name, resources, name, ranges):
            message = f"{name} was put in by a LimitRange, container {ask.container.name} did not ask for it"
            fix = f'Write {name}: "0" in its limits.'
            yield Remark("GPU-L202", (*ask.path, "resources", "limits", name), message, fix, at_most=Mode.WARN)
    yield from refusals(ranges, _amounts(case, shape), frozenset(totals))


def _amounts(case: Case, shape: Shape) -> list[Amounts]:
    spec = case.pod.spec
    found: list[Amounts] = []
    for kind, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            path = ("spec", kind, index)
            limits = shape.limits.get(path, container.resources.limits)
            found.append(Amounts(path, limits, shape.requests.get(path, container.resources.requests or limits)))
    return found
