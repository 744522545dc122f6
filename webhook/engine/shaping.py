"""Steps 3, 4 and 6: from what a pod asks for to the shape it gets."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.asking import Ask
from webhook.engine.case import Case
from webhook.engine.fit import Sizing, fit, sizing_of
from webhook.engine.hints import hint
from webhook.engine.limits import defaults
from webhook.engine.pricing import unit_milli
from webhook.engine.rightsize import carry_out, sized_remark
from webhook.engine.settle import heard
from webhook.engine.shape import Shape
from webhook.engine.topology import locality
from webhook.model.decisions import Fit, Keep, Why
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.resources import ACCOUNTING
from webhook.policy.compiled import Limits


def shape_pod(case: Case, shape: Shape) -> tuple[Fit | Keep, list[Finding]]:
    """Give a pod its shape. Sections on trial work on a shape that is thrown away."""
    findings: list[Finding] = []
    outcome = _right_size(case, shape, findings)
    for policy in case.policies:
        if policy.injection is not None:
            target = shape if policy.injection.mode is Mode.ENFORCE else Shape(case.pod)
            remarks = hint(policy.injection, target, case.asked, case.reach, case.namespace_notes)
            findings += heard((policy.injection.mode, policy.name), remarks)
        if policy.topology is not None:
            target = shape if policy.topology.mode is Mode.ENFORCE else Shape(case.pod)
            remarks = locality(policy.topology, target, case.asked, case.reach)
            findings += heard((policy.topology.mode, policy.name), remarks)
        if policy.limits is not None and policy.limits.mode is Mode.ENFORCE:
            _add_defaults(policy.limits, case, shape)
    if any(
        policy.limits and policy.limits.accounting and policy.limits.mode is Mode.ENFORCE for policy in case.policies
    ):
        _account(case, shape)
    return outcome, findings


def _right_size(case: Case, shape: Shape, findings: list[Finding]) -> Fit | Keep:
    sizing = sizing_of(case.policies)
    if sizing is None:
        return Keep(Why.NOT_ASKED)
    outcome = fit(case.request, case.pod, case.asked, case.declared, sizing, case.reach, case.usage)
    mode = sizing.rule.mode
    if isinstance(outcome, Fit) and mode is Mode.ENFORCE:
        carry_out(outcome, case.asked, shape, case.request.namespace, case.view)
    findings += _said(case, sizing, outcome)
    return outcome


def _said(case: Case, sizing: Sizing, outcome: Fit | Keep) -> Iterator[Finding]:
    voice = (sizing.rule.mode, sizing.policy)
    yield from heard(voice, case.declared.faults)
    said = sized_remark(outcome, sizing.rule.mode, case.asked, declared=bool(case.declared.text))
    if said is not None:
        yield from heard(voice, (said,))


def _add_defaults(limits: Limits, case: Case, shape: Shape) -> None:
    """Give requests that a policy has a default for, where no LimitRange or quota of the namespace has a say.

    Those are checked after us: a request that nobody asked for must not be what gets a pod refused.
    """
    namespace = case.request.namespace
    if case.view.limit_ranges(namespace) or case.view.quotas(namespace):
        return
    by_path = {ask.path: ask for ask in case.asked.asks}
    for index, additions in defaults(limits, case.asked).items():
        ask = by_path["spec", "containers", index]
        _, requests = shape.resources_of(ask)
        shape.requests[ask.path] = {**additions, **requests}
        shape.note("requests")


def _account(case: Case, shape: Shape) -> None:
    """Request the accounting resource beside every GPU: what one unit weighs, by what it will be."""
    weights: dict[tuple[str | int, ...], int] = {}
    for ask in case.asked.asks:
        weights[ask.path] = weights.get(ask.path, 0) + ask.count * _weight(case, shape, ask)
    for ask in case.asked.asks:
        amount = str(weights[ask.path])
        limits, requests = shape.resources_of(ask)
        if limits.get(ACCOUNTING) == amount and requests.get(ACCOUNTING, amount) == amount:
            continue
        shape.limits[ask.path] = {**limits, ACCOUNTING: amount}
        shape.requests[ask.path] = {**requests, ACCOUNTING: amount}
        shape.note("accounting")


def _weight(case: Case, shape: Shape, ask: Ask) -> int:
    if shape.fit is not None:
        return shape.fit.gpu_milli
    return unit_milli(ask.resource.name, case.view.fleet)
