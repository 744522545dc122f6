"""Steps 2 and 5: what a pod may not do, may not ask for, and will not get. Judged on the shape it will have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from webhook.engine.asking import Asked, asked_in
from webhook.engine.case import Case, offers_of
from webhook.engine.cuda import driver_remarks
from webhook.engine.guard import guard
from webhook.engine.limitrange import LIMIT_RANGER_NOTE, Amounts, refusals, was_injected
from webhook.engine.limits import breaches
from webhook.engine.placement import obstacles
from webhook.engine.quota import excesses
from webhook.engine.remarks import Remark
from webhook.engine.rules import Rules
from webhook.engine.settle import Voice, hear
from webhook.engine.shape import Shape
from webhook.model.cluster import ClusterView
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.policy.compiled import Limits


def judge_security(
    request: Request, pod: Pod, asked: Asked, rules: Rules, view: ClusterView, findings: list[Finding]
) -> None:
    """Every way round GPU accounting that a policy denies."""
    asks_gpus = bool(asked.asks or asked.strangers)
    shares = asks_gpus and pod.spec.share_process_namespace and _asks_share(asked, view)
    for voice, section in rules.security:
        bypasses = guard(
            request,
            pod,
            asks_gpus=asks_gpus,
            asks_share=shares,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypasses:
            hear(findings, voice, [remark for bypass, remark in bypasses if bypass in section.deny])


def _asks_share(asked: Asked, view: ClusterView) -> bool:
    """Does the pod ask for a share of a card, by name or by what nodes offer under it?"""
    offers = offers_of(asked, view, view.fleet.everyone)
    return any(ask.resource.shared for ask in asked.asks) or any(offer.replicas > 1 for offer in offers)


def judge(case: Case, shape: Shape, findings: list[Finding]) -> None:
    """Everything a GPU pod may not ask for or will not get."""
    rules = case.rules
    for voice, limits in rules.limits:
        _limits(limits, case, shape, voice, findings)
    for voice in rules.cuda:
        asking = list({ask.path: (ask.path, ask.container) for ask in case.asked.asks}.values())
        hear(findings, voice, driver_remarks(case.pod, shape.fit.offers if shape.fit else case.offers, asking))
    if case.asked.faults:
        hear(findings, rules.general, case.asked.faults)
    if shape.fit is None:
        hear(findings, rules.general, obstacles(case, shape))


def _limits(limits: Limits, case: Case, shape: Shape, voice: Voice, findings: list[Finding]) -> None:
    sections = [section for (mode, _), section in case.rules.limits if mode >= voice[0]]
    broken = breaches(limits, case.pod, _demanded(case), resized=shape.fit is not None, sections=sections)
    if broken:
        hear(findings, voice, broken)
    namespace = case.request.namespace
    totals = totals_of(case, shape)
    limited = case.view.limited(namespace) if limits.limit_ranges else ()
    if limited and not limited.isdisjoint((*totals, *case.asked.totals)):
        hear(findings, voice, _limit_ranges(case, shape, totals))
    quotas = case.view.quotas(namespace) if limits.resource_quotas else ()
    if quotas:
        hear(findings, voice, excesses(quotas, case.pod, totals))


def _demanded(case: Case) -> Asked:
    """What the user asked for: without the amounts that LimitRanger put into containers that named none."""
    if LIMIT_RANGER_NOTE not in case.pod.metadata.annotations:
        return case.asked
    ranges = case.view.limit_ranges(case.request.namespace)
    asks = tuple(ask for ask in case.asked.asks if not was_injected(ask, case.pod, ranges))
    return case.asked if len(asks) == len(case.asked.asks) else asked_in(case.pod, asks)


def totals_of(case: Case, shape: Shape) -> Mapping[str, int]:
    """GPU totals by name once the pod has its shape."""
    if shape.fit is None:
        return case.asked.totals
    return {shape.fit.resource: sum(case.asked.totals.values())}


def _limit_ranges(case: Case, shape: Shape, totals: Mapping[str, int]) -> Iterator[Remark]:
    ranges = case.view.limit_ranges(case.request.namespace)
    for ask in case.asked.asks:
        name = ask.resource.name
        if was_injected(ask, case.pod, ranges):
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
