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

import msgspec

from webhook.engine.asking import Asked, asked_by
from webhook.engine.creating import Coming, Created, create
from webhook.engine.judge import judge_pools, judge_security, judge_update
from webhook.engine.limitrange import Given, given_in
from webhook.engine.linting import LINTED, lint, of_every_form
from webhook.engine.match import Speaking, match
from webhook.engine.pricing import total_milli
from webhook.engine.quota import pod_weight
from webhook.engine.settle import hear, strictest, take_back
from webhook.engine.shape import Shape
from webhook.engine.workloads import Judged, pods_of, warned
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision
from webhook.model.findings import Exempted, Finding
from webhook.model.pods import Pod
from webhook.model.pools import Weight
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
        for template, of_template, pod in pods_of(request, policies, view)
    ]
    return warned(judged)


def _linted(request: Request, view: ClusterView) -> Decision:
    """Traps in a LimitRange or a quota, for the admin who applies it: warnings only."""
    others = [quota for quota in view.quotas(request.namespace) if quota.metadata.name != request.name]
    counting = [scopes for quota in others for scopes in of_every_form({"spec": msgspec.to_builtins(quota.spec)})]
    ranges = [each for each in view.ranges(request.namespace) if each.name != request.name]
    given = {name: amount for each in ranges for name, amount in each.limits.items()}
    findings = lint(request.load(), counting, view.classes, given)
    return Decision(findings=tuple(findings), touches_gpus=bool(findings))


def decide_pod(
    request: Request, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """The eight steps, for one pod."""
    asked, given = asked_by(pod), _given(request, pod, view)
    # 1 match
    speaking = match(request, pod, asked, policies, view, [one.resource for one in given] if given else ())
    rules, findings = speaking.rules, _failures(speaking) if speaking.failures else []
    # 2 guard
    judge_security(request, pod, asked, given, rules, view, findings)
    # 3 demand, 4 fit, 5 judge, 6 hints, 8 patch: of a pod on its way in; one that is stored keeps its shape
    if request.operation == "CREATE":
        created = create(Coming(request, pod, asked, given, rules, view, usage), findings, policies.digest)
    else:
        created = Created(asked)
        judge_update(request, pod, asked, rules, view, findings)
    left, shape = created.left, created.shape
    weight = _weighed(request, pod, left, shape, policies, view)
    if weight and rules.quotas:
        judge_pools(request, pod, weight, rules, view, findings)
    # 7 settle
    standing, exempted = _settled(findings, policies, request, pod, now)
    before = total_milli(asked.totals, view.fleet)
    unsized = before if left is asked else total_milli(left.totals, view.fleet)
    return Decision(
        findings=standing,
        exempted=exempted,
        patch=created.patch,
        outcome=created.outcome,
        applied=shape is not None and shape.fit is not None,
        gpu_milli_before=before,
        gpu_milli_after=_milli_after(shape, unsized),
        left=left.totals,
        policies=rules.names,
        outside=rules.outside,
        weight=weight,
        touches_gpus=bool(asked.asks or asked.strangers or standing or exempted),
    )


def _given(request: Request, pod: Pod, view: ClusterView) -> tuple[Given, ...]:
    """GPUs that LimitRanges put into a pod on its way in."""
    return given_in(pod, view.ranges(request.namespace)) if request.operation == "CREATE" else ()


def _weighed(
    request: Request, pod: Pod, left: Asked, shape: Shape | None, policies: PolicySet, view: ClusterView
) -> Weight:
    """What a new pod weighs, also where no policy speaks about it: its namespace may share a quota all the same."""
    if not policies.pooled or not left.totals or request.operation != "CREATE" or request.sub_resource:
        return ()
    return pod_weight(pod, left, shape, view.fleet)


def _failures(speaking: Speaking) -> list[Finding]:
    """The first findings: what went wrong while the policies were asked."""
    findings: list[Finding] = []
    for voice, failure in speaking.failures:
        hear(findings, voice, (failure,))
    return findings


def _settled(
    findings: list[Finding], policies: PolicySet, request: Request, pod: Pod, now: datetime
) -> tuple[tuple[Finding, ...], tuple[Exempted, ...]]:
    if not findings:
        return (), ()
    standing, exempted = take_back(findings, policies.exemptions, request, pod, now)
    return (strictest(standing) if len(standing) > 1 else standing), exempted


def _milli_after(shape: Shape | None, unsized: int) -> int:
    return unsized if shape is None or shape.fit is None else shape.fit.gpu_milli
