"""Steps 2 and 5: what a pod may not do, may not ask for, and will not get. Judged on the shape it will have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.engine.accounting import left_out, wrong_values
from webhook.engine.asking import Asked, asked_in
from webhook.engine.case import Case
from webhook.engine.containers import Amounts, amounts_of
from webhook.engine.cuda import driver_remarks
from webhook.engine.guard import guard
from webhook.engine.limitrange import Given, Injected, final_amounts, injected_remarks, passes, range_remarks
from webhook.engine.limits import breaches
from webhook.engine.placement import obstacles
from webhook.engine.quota import Held, claim_remarks, moved_remarks, pool_remarks, quota_remarks, resized_remarks
from webhook.engine.remarks import Remark
from webhook.engine.resizing import Resize, judge_resize
from webhook.engine.rules import Rules
from webhook.engine.settle import Voice, hear
from webhook.engine.shape import Shape
from webhook.engine.shares import asks_share
from webhook.engine.staying import is_mirror
from webhook.engine.topology import misread
from webhook.model.cluster import ClusterView
from webhook.model.findings import Finding
from webhook.model.pods import Pod
from webhook.model.pools import Weight
from webhook.model.requests import Request
from webhook.policy.compiled import Injected as WhenInjected
from webhook.policy.compiled import Limits


def judge_security(
    request: Request,
    pod: Pod,
    asked: Asked,
    given: Sequence[Given],
    rules: Rules,
    view: ClusterView,
    findings: list[Finding],
) -> None:
    """Every way round GPU accounting that a policy denies; `given` are GPUs that LimitRanges put in."""
    shares = bool(asked.asks) and pod.spec.share_process_namespace and asks_share(asked.totals, view.fleet)
    for voice, section in rules.security:
        bypasses = guard(
            request,
            pod,
            asked,
            asks_share=shares,
            given=given,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypasses:
            hear(findings, voice, [remark for bypass, remark in bypasses if bypass in section.deny])


def judge(case: Case, shape: Shape, findings: list[Finding]) -> None:
    """Everything a GPU pod may not ask for or will not get."""
    rules, amounts = case.rules, amounts_of(case.pod.spec)
    said = _amount_remarks(case.request, shape, amounts, rules, case.view)
    gpus_aside = shape.fit is not None and not case.pod.final
    demanded, known = _demanded(case), None if case.injected.given else amounts
    for voice, limits in rules.limits:
        sections = rules.binding[voice[0]]
        broken = breaches(limits, case.pod, demanded, known, gpus_aside=gpus_aside, sections=sections)
        if broken:
            hear(findings, voice, broken)
        if said is not NOTHING_SAID or case.injected.given:
            _hear_amounts(limits, voice, said, case.injected, findings)
        if limits.accounting and not is_mirror(case.pod):
            hear(findings, voice, wrong_values(case, shape))
            hear(findings, voice, left_out(case, shape, sections))
    for voice in rules.cuda:
        unfit = driver_remarks(case.pod, shape.fit.offers if shape.fit else case.offers, case.asked.containers())
        if unfit:
            hear(findings, voice, unfit)
    in_the_way = obstacles(case, shape) if shape.fit is None else []
    if in_the_way or case.asked.faults or case.pod.metadata.annotations:
        hear(findings, rules.general, (*case.asked.faults, *misread(case.pod), *in_the_way))


class _Said(NamedTuple):
    """What the API server will say of a pod's amounts: LimitRanges, then quotas, of the pod and then of its claims."""

    ranges: Sequence[Remark] = ()
    quotas: Sequence[Remark] = ()


NOTHING_SAID = _Said()


def judge_amounts(
    request: Request, shape: Shape, rules: Rules, view: ClusterView, injected: Injected, findings: list[Finding]
) -> None:
    """What the namespace's LimitRanges and quotas will say of a pod that asks for no GPU."""
    said = _amount_remarks(request, shape, amounts_of(shape.pod.spec), rules, view)
    for voice, limits in rules.limits:
        _hear_amounts(limits, voice, said, injected, findings)


UPDATES = {"": moved_remarks, "resize": resized_remarks}
"""What quotas say of an update, by its subresource; of others nothing."""


def judge_update(
    request: Request, pod: Pod, asked: Asked, rules: Rules, view: ClusterView, findings: list[Finding]
) -> None:
    """What limits say of a pod that is resized while it runs, and quotas of that and of a new deadline."""
    if request.sub_resource == "resize" and request.old_pod is not None and asked.asks:
        judge_resize(Resize(request.old_pod, pod, asked), rules, findings)
    _judge_quotas(request, pod, rules, view, findings)


def _judge_quotas(request: Request, pod: Pod, rules: Rules, view: ClusterView, findings: list[Finding]) -> None:
    quotas, old = view.quotas(request.namespace), request.old_pod
    remarks = UPDATES.get(request.sub_resource)
    if not quotas or not rules.limits or old is None or remarks is None:
        return
    said = tuple(remarks(old, pod, quotas, _held_in(request.namespace, view)))
    for voice, limits in rules.limits:
        if limits.resource_quotas:
            hear(findings, voice, said)


def judge_pools(
    request: Request, pod: Pod, weight: Weight, rules: Rules, view: ClusterView, findings: list[Finding]
) -> None:
    """What a pod would hold beyond the quotas that its namespace shares with others."""
    for voice, section in rules.quotas:
        hear(findings, voice, pool_remarks(section, pod, request.namespace, weight, view))


def _held_in(namespace: str, view: ClusterView) -> Held:
    """Who holds what a quota of the namespace counts."""
    return lambda quota, what: view.held(quota, namespace, what)


def _amount_remarks(request: Request, shape: Shape, amounts: Amounts, rules: Rules, view: ClusterView) -> _Said:
    """What the API server will say of a shape; `amounts` are those of the pod as it came."""
    space = request.namespace
    ranges, room = view.ranges(space), view.quota_room(space)
    if not rules.limits or not (ranges or room):
        return NOTHING_SAID
    if shape.limits or shape.requests:
        amounts = amounts_of(shape.pod.spec, shape.limits, shape.requests)
    claims = _claim_remarks(request, shape.pod, view) if shape.pod.spec.resource_claims else ()
    passing = passes(shape.pod, amounts, ranges, room)
    holders = None if passing else final_amounts(shape, ranges)
    if holders is None:
        return _Said(quotas=claims) if claims else NOTHING_SAID
    return _Said(
        range_remarks(shape, holders, ranges) if ranges else (),
        (*quota_remarks(shape.pod, holders, view.quotas(space), _held_in(space, view)), *claims),
    )


def _claim_remarks(request: Request, pod: Pod, view: ClusterView) -> tuple[Remark, ...]:
    """What quotas will say of the claims that are made for a pod."""
    space = request.namespace
    return tuple(claim_remarks(pod, view.claiming(space), view.quotas(space), lambda key: view.claimed(space, key)))


def _hear_amounts(limits: Limits, voice: Voice, said: _Said, injected: Injected, findings: list[Finding]) -> None:
    if limits.limit_ranges:
        if injected.given and limits.injected is not WhenInjected.KEEP:
            hear(findings, voice, injected_remarks(injected))
        hear(findings, voice, said.ranges)
    if limits.resource_quotas:
        hear(findings, voice, said.quotas)


def _demanded(case: Case) -> Asked:
    """What the user asked for: without the amounts that LimitRanger put into containers that named none."""
    if not case.injected.given:
        return case.asked
    asks = tuple(ask for ask in case.asked.asks if not case.injected.holds(ask.path, ask.resource.name))
    return case.asked if len(asks) == len(case.asked.asks) else asked_in(asks)
