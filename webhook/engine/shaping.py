"""Steps 3, 4 and 6: from what a pod asks for to the shape it gets."""

from __future__ import annotations

from webhook.engine.accounting import account
from webhook.engine.case import Case
from webhook.engine.demand import misread_keep
from webhook.engine.fit import fit
from webhook.engine.hints import hint
from webhook.engine.limits import defaults
from webhook.engine.reach import Reach
from webhook.engine.rightsize import carry_out, sized_remark
from webhook.engine.rules import Sizing
from webhook.engine.settle import Voice, hear
from webhook.engine.shape import Shape
from webhook.engine.topology import locality
from webhook.model.decisions import Fit, Keep, Why
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.policy.compiled import Limits

NOT_ASKED = Keep(Why.NOT_ASKED)


def shape_pod(case: Case, shape: Shape, findings: list[Finding]) -> Fit | Keep:
    """Give a pod its shape. Sections on trial work on a shape that is thrown away."""
    rules = case.rules
    outcome = _right_size(case, rules.sizing, shape, findings) if rules.sizing else NOT_ASKED
    for voice, injection in rules.injections:
        target = _for(voice, shape)
        hear(findings, voice, hint(injection, target, case))
    for voice, topology in rules.topologies:
        target = _for(voice, shape)
        hear(findings, voice, locality(topology, target, case))
    for policy, limits in rules.defaults:
        shape.speaker = policy
        _add_defaults(limits, case, shape)
    if rules.accounting:
        shape.speaker = rules.accounting
        account(case, shape)
    return outcome


def _for(voice: Voice, shape: Shape) -> Shape:
    """What a section works on: the shape, in its policy's name, or one that is thrown away."""
    if voice[0] is not Mode.ENFORCE:
        return Shape(shape.pod)
    shape.speaker = voice[1]
    return shape


def _right_size(case: Case, sizing: Sizing, shape: Shape, findings: list[Finding]) -> Fit | Keep:
    reach = case.reach if sizing.rule.mode is Mode.ENFORCE else _trial_reach(case)
    outcome = fit(case, sizing, reach)
    voice = (sizing.rule.mode, sizing.policy)
    if isinstance(outcome, Fit) and voice[0] is Mode.ENFORCE:
        shape.speaker = outcome.policy
        carry_out(outcome, case.asked, shape, case.request.namespace, case.view)
    hear(findings, voice, (*case.declared.faults, *misread_keep(case.pod)))
    said = sized_remark(outcome, voice[0], case.asked, declared=case.declared.memory_mib is not None)
    if said is not None:
        hear(findings, voice, (said,))
    return outcome


def _trial_reach(case: Case) -> Reach:
    """What the pod would reach if the injections on trial beside the right-sizing were enforced with it."""
    tolerations, markers = case.rules.trial
    if markers is case.rules.markers and tolerations == case.rules.tolerations:
        return case.reach
    return Reach(case.view, case.pod, tolerations, markers=markers)


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
