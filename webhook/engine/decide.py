"""`decide`: one object in, everything it comes to out. Every face of the product calls this and nothing else.

1 match    which policies speak about this pod; which exceptions hold at `now`
2 guard    what is refused whatever the size
3 demand   what each container needs, and on what evidence
4 fit      the least offer that covers it, safely; or keep, with the reason
5 judge    limits, LimitRange, quota, node fit, CUDA
6 hints    tolerations, affinity, spread, topology
7 settle   each section's mode: enforce, warn, audit
8 patch    the few operations from the pod to its shape
"""

from __future__ import annotations

from datetime import datetime

from webhook.engine.accounting import clear_others, names_accounting
from webhook.engine.asking import Asked, asked_by, asked_in
from webhook.engine.case import Case
from webhook.engine.judge import judge, judge_amounts, judge_pools, judge_security, judge_update
from webhook.engine.limitrange import Injected, given_in, take_out
from webhook.engine.linting import LINTED, lint
from webhook.engine.match import match
from webhook.engine.patch import operations
from webhook.engine.pricing import total_milli
from webhook.engine.quota import pod_weight
from webhook.engine.rules import Rules
from webhook.engine.settle import hear, strictest, take_back
from webhook.engine.shape import Shape
from webhook.engine.shaping import NOT_ASKED, shape_pod
from webhook.engine.workloads import Judged, pods_of, warned
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision, Fit, Keep
from webhook.model.findings import Exempted, Finding
from webhook.model.pods import Pod
from webhook.model.pools import Weight
from webhook.model.ranges import NO_RANGES
from webhook.model.requests import Request
from webhook.model.usage import UsageView
from webhook.policy.compiled import PolicySet

JUDGED_OPERATIONS = ("CREATE", "UPDATE")
NOTHING = Decision()


def decide(request: Request, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime) -> Decision:
    """Judge and shape one object.

    A pod is judged and shaped. A workload with pod templates is told what will happen to its pods, and an admin
    what a LimitRange or a quota does besides what it says, in warnings only. Anything else, and every other
    operation, comes to nothing.

    Args:
        now: The moment at which exemptions are looked at; aware of its zone.
    """
    if request.operation not in JUDGED_OPERATIONS:
        return NOTHING
    if request.pod is not None:
        return decide_pod(request, request.pod, policies, view, usage, now)
    if request.kind in LINTED and not request.group:
        return _linted(request, view)
    judged = [
        Judged(template, decide_pod(of_template, pod, policies, view, usage, now))
        for template, of_template, pod in pods_of(request, policies)
    ]
    return warned(judged)


def _linted(request: Request, view: ClusterView) -> Decision:
    """Traps in a LimitRange or a quota, for the admin who applies it: warnings only."""
    others = [quota for quota in view.quotas(request.namespace) if quota.metadata.name != request.name]
    findings = lint(request.load(), [key for quota in others for key in quota.spec.hard])
    return Decision(findings=tuple(findings), touches_gpus=bool(findings))


def decide_pod(
    request: Request, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """The eight steps, for one pod."""
    asked = asked_by(pod)
    ranges = view.ranges(request.namespace) if request.operation == "CREATE" else NO_RANGES
    given = given_in(pod, ranges) if ranges else ()
    speaking = match(request, pod, asked, policies, view, [one.resource for one in given])
    rules = speaking.rules
    findings: list[Finding] = []
    for voice, failure in speaking.failures:
        hear(findings, voice, (failure,))

    if rules.security:
        judge_security(request, pod, asked, rules, view, findings)
    shape: Shape | None = None
    outcome: Fit | Keep = NOT_ASKED
    if (
        rules.names
        and request.operation == "CREATE"
        and (asked.asks or given or _is_bounded(request, pod, rules, view))
    ):
        shape = Shape(pod)
        injected = take_out(pod, shape, given, ranges) if given and rules.takes_out else Injected(given)
        left = _without(injected, asked, pod) if injected.out else asked
        if left.asks:
            case = Case(request, pod, left, rules, view, usage, injected)
            outcome = shape_pod(case, shape, findings)
            judge(case, shape, findings)
        else:
            if rules.accounting:
                clear_others(shape)
            judge_amounts(request, shape, rules, view, injected, findings)

    elif request.operation == "UPDATE" and rules.limits:
        judge_update(request, pod, rules, view, findings)
    weight = _weighed(request, pod, asked, shape, policies, view)
    if weight and rules.quotas:
        judge_pools(request, pod, weight, rules, view, findings)

    standing, exempted = _settled(findings, policies, request, pod, now)
    before = total_milli(asked.totals, view.fleet) if asked.totals else 0
    return Decision(
        findings=standing,
        exempted=exempted,
        patch=operations(shape, rules.names, policies.digest) if shape else (),
        outcome=outcome,
        applied=shape is not None and shape.fit is not None,
        gpu_milli_before=before,
        gpu_milli_after=_milli_after(shape, asked, before),
        policies=rules.names,
        weight=weight,
        touches_gpus=bool(asked.asks or asked.strangers or standing or exempted),
    )


def _weighed(
    request: Request, pod: Pod, asked: Asked, shape: Shape | None, policies: PolicySet, view: ClusterView
) -> Weight:
    """What a new pod weighs, also where no policy speaks about it: its namespace may share a quota all the same."""
    if not policies.pooled or not asked.totals or request.operation != "CREATE" or request.sub_resource:
        return ()
    return pod_weight(pod, asked, shape, view.fleet)


def _is_bounded(request: Request, pod: Pod, rules: Rules, view: ClusterView) -> bool:
    """Is there something to say, or to write, to a pod without GPUs?

    What the namespace's LimitRanges and quotas will say, if some policy speaks for them; and the accounting resource
    is nobody's own to write.
    """
    if not rules.limits:
        return False
    if view.ranges(request.namespace) or view.quotas(request.namespace):
        return True
    return rules.accounting and names_accounting(pod)


def _without(injected: Injected, asked: Asked, pod: Pod) -> Asked:
    """What is left to ask for once GPUs that nobody asked for are taken out."""
    asks = tuple([ask for ask in asked.asks if not injected.holds(ask.path, ask.resource.name)])
    return asked_in(pod, asks, asked.strangers, asked.faults)


def _settled(
    findings: list[Finding], policies: PolicySet, request: Request, pod: Pod, now: datetime
) -> tuple[tuple[Finding, ...], tuple[Exempted, ...]]:
    if not findings:
        return (), ()
    standing, exempted = take_back(findings, policies.exemptions, request, pod, now)
    return strictest(standing), exempted


def _milli_after(shape: Shape | None, asked: Asked, before: int) -> int:
    if shape is None or shape.fit is None:
        return before
    return shape.fit.gpu_milli * sum(asked.totals.values())
