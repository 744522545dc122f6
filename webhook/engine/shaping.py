"""Steps 3, 4 and 6: from what a pod asks for to the shape it gets."""

from __future__ import annotations

from webhook.engine.accounting import account
from webhook.engine.case import Case
from webhook.engine.demand import misread_keep
from webhook.engine.fit import fit
from webhook.engine.foreseen import bears_defaults, requests_given
from webhook.engine.hints import hint
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
        if said := hint(injection, target, case):
            hear(findings, voice, said)
    for voice, topology in rules.topologies:
        target = _for(voice, shape)
        if said := locality(topology, target, case):
            hear(findings, voice, said)
    if rules.defaults and (shape.fit is not None or bears_defaults(case, shape.required)):
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
    outcome = fit(case, sizing)
    voice = (sizing.rule.mode, sizing.policy)
    if isinstance(outcome, Fit) and voice[0] is Mode.ENFORCE:
        shape.speaker = outcome.policy
        carry_out(outcome, case.asked, shape, case.request.namespace, case.view)
    if case.pod.metadata.annotations:
        hear(findings, voice, (*case.declared.faults, *misread_keep(case.pod)))
    said = sized_remark(outcome, voice[0], case.asked, declared=case.declared.memory_mib is not None)
    if said is not None:
        hear(findings, voice, (said,))
    return outcome


def _add_defaults(limits: Limits, case: Case, shape: Shape) -> None:
    """Give requests that a policy has a default for."""
    by_path = {ask.path: ask for ask in case.asked.asks}
    for index, additions in requests_given(case, (limits,)).items():
        ask = by_path["spec", "containers", index]
        _, requests = shape.resources_of(ask)
        shape.requests[ask.path] = {**additions, **requests}
        shape.note("requests")
