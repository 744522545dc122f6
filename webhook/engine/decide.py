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

from webhook.engine.asking import Asked, asked_by
from webhook.engine.case import Case
from webhook.engine.judge import judge, refusals_of_security
from webhook.engine.match import match
from webhook.engine.patch import operations
from webhook.engine.pricing import total_milli
from webhook.engine.settle import heard, strictest, take_back
from webhook.engine.shape import Shape
from webhook.engine.shaping import shape_pod
from webhook.engine.workloads import Judged, pods_of, warned
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision, Fit, Keep, Why
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.usage import UsageView
from webhook.policy.compiled import PolicySet

JUDGED_OPERATIONS = ("CREATE", "UPDATE")
NOTHING = Decision()


def decide(request: Request, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime) -> Decision:
    """Judge and shape one object.

    A pod is judged and shaped. A workload with pod templates is told what will happen to its pods, in
    warnings only. Anything else, and every other operation, comes to nothing.

    Args:
        now: The moment at which exemptions are looked at; aware of its zone.
    """
    if request.operation not in JUDGED_OPERATIONS:
        return NOTHING
    if request.pod is not None:
        return decide_pod(request, request.pod, policies, view, usage, now)
    judged = [
        Judged(template, decide_pod(of_template, pod, policies, view, usage, now))
        for template, of_template, pod in pods_of(request, policies)
    ]
    return warned(judged)


def decide_pod(
    request: Request, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """The eight steps, for one pod."""
    asked = asked_by(pod)
    speaking = match(request, pod, asked, policies, view)
    case = Case(request, pod, asked, speaking.policies, view, usage)
    shape = Shape(pod)
    outcome: Fit | Keep = Keep(Why.NOT_ASKED)

    findings: list[Finding] = []
    for policy, failure in speaking.failures:
        findings += heard((Mode.ENFORCE, policy.name), (failure,))
    findings += refusals_of_security(case)
    if asked.asks and request.operation == "CREATE":
        outcome, said = shape_pod(case, shape)
        findings += said
        findings += judge(case, shape)

    standing, exempted = take_back(findings, policies.exemptions, request, pod, now)
    names = tuple(policy.name for policy in speaking.policies)
    return Decision(
        findings=strictest(standing) if len(standing) > 1 else standing,
        exempted=exempted,
        patch=operations(shape, names, policies.digest),
        outcome=outcome,
        applied=shape.fit is not None,
        gpu_milli_before=total_milli(asked.totals, view.fleet) if asked.totals else 0,
        gpu_milli_after=_milli_after(asked, shape, view),
        policies=names,
        touches_gpus=bool(asked.asks or asked.strangers or standing or exempted),
    )


def _milli_after(asked: Asked, shape: Shape, view: ClusterView) -> int:
    if shape.fit is None:
        return total_milli(asked.totals, view.fleet) if asked.totals else 0
    return shape.fit.gpu_milli * sum(asked.totals.values())
