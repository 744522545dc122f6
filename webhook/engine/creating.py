"""Steps 3 to 6 and 8 for a pod on its way in: its shape, what speaks against the pod in that shape, and the patch.

A pod that is stored already keeps its shape; nothing here is asked about it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from webhook.engine.accounting import clear_others, names_accounting
from webhook.engine.asking import Asked, asked_in
from webhook.engine.case import Case
from webhook.engine.judge import judge, judge_amounts
from webhook.engine.limitrange import NOBODY, Given, Injected, take_out
from webhook.engine.patch import operations
from webhook.engine.remarks import Remark
from webhook.engine.rules import Rules, adding_nothing
from webhook.engine.settle import hear
from webhook.engine.shape import Shape
from webhook.engine.shaping import NOT_ASKED, shape_pod
from webhook.engine.staying import is_mirror, is_placed
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Fit, Keep, Operation, Why
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.usage import UsageView

NO_ROOM = Keep(Why.NO_ROOM)


class Coming(msgspec.Struct, frozen=True, gc=False):
    """A pod on its way in.

    Attributes:
        given: GPUs that LimitRanges put in.
        rules: What the policies that speak about it say.
    """

    request: Request
    pod: Pod
    asked: Asked
    given: tuple[Given, ...]
    rules: Rules
    view: ClusterView
    usage: UsageView


class Created(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a pod.

    Attributes:
        left: What it asks for, without GPUs that are taken out again.
        shape: None where nothing is said of its amounts and so nothing is changed.
        outcome: What became of its size.
        patch: The operations from the pod to its shape.
    """

    left: Asked
    shape: Shape | None = None
    outcome: Fit | Keep = NOT_ASKED
    patch: tuple[Operation, ...] = ()


def create(coming: Coming, findings: list[Finding], digest: str) -> Created:
    """Shape a pod and judge the shape; the pod as it came where what would be written finds no room in it.

    Args:
        findings: What is found is added to these.
        digest: Digest of the policy set, for the record.
    """
    coming = _let_be(coming) if is_placed(coming.pod) else coming
    rules = coming.rules
    if not rules.names or not (coming.asked.asks or coming.given or _is_bounded(coming)):
        return Created(coming.asked)
    known, shape = len(findings), Shape(coming.pod)
    left, outcome = _shaped(coming, shape, findings)
    patch = operations(shape, rules.names, digest)
    if patch is not None:
        return Created(left, shape, outcome, patch)
    del findings[known:]
    return _left_alone(coming, findings, speaker=", ".join(shape.by))


def _let_be(coming: Coming) -> Coming:
    """A pod that comes with its node: nothing may come between the two.

    Only what it asks for is written, which no kubelet minds: GPUs that a LimitRange put in are taken out, and the rest
    is counted, for no quota is escaped by naming a node. A mirror is left as its node wrote it.
    """
    rules = adding_nothing(coming.rules)
    return replace(coming, rules=replace(rules, accounting="", takes_out="") if is_mirror(coming.pod) else rules)


def _shaped(coming: Coming, shape: Shape, findings: list[Finding]) -> tuple[Asked, Fit | Keep]:
    """Give a pod its shape and judge that. What it still asks for, and what became of its size."""
    request, pod, given, rules, view = coming.request, coming.pod, coming.given, coming.rules, coming.view
    injected = Injected(given) if given else NOBODY
    if given and rules.takes_out and not pod.final:
        shape.speaker = rules.takes_out
        injected = take_out(pod, shape, given, view.ranges(request.namespace))
    left = _without(injected, coming.asked) if injected.out else coming.asked
    if left.asks:
        case = Case(request, pod, left, rules, view, coming.usage, injected)
        outcome = shape_pod(case, shape, findings)
        judge(case, shape, findings)
        return left, outcome
    if rules.accounting:
        shape.speaker = rules.accounting
        clear_others(shape, view.ranges(request.namespace))
    judge_amounts(request, shape, rules, view, injected, findings)
    return left, NOT_ASKED


def _left_alone(coming: Coming, findings: list[Finding], speaker: str) -> Created:
    """Judge a pod as it came; `speaker` names the policies that would have changed it."""
    request, asked, rules, view = coming.request, coming.asked, coming.rules, coming.view
    shape, injected = Shape(coming.pod), Injected(coming.given) if coming.given else NOBODY
    path, fix = ("metadata", "annotations"), "Shorten its annotations; all of them may have 256 KiB together."
    hear(findings, (Mode.WARN, speaker), (Remark("GPU-R103", path, f"stays as it is: {NO_ROOM}", fix),))
    if asked.asks:
        judge(Case(request, coming.pod, asked, adding_nothing(rules), view, coming.usage, injected), shape, findings)
    else:
        judge_amounts(request, shape, rules, view, injected, findings)
    return Created(asked, shape, NO_ROOM)


def _is_bounded(coming: Coming) -> bool:
    """Is there something to say, or to write, to a pod without GPUs?

    What the namespace's LimitRanges and quotas will say, if some policy speaks for them; and the accounting resource
    is nobody's own to write.
    """
    rules, view, namespace = coming.rules, coming.view, coming.request.namespace
    if not rules.limits:
        return False
    if view.ranges(namespace) or view.quota_room(namespace):
        return True
    return bool(rules.accounting) and names_accounting(coming.pod)


def _without(injected: Injected, asked: Asked) -> Asked:
    """What is left to ask for once GPUs that nobody asked for are taken out."""
    asks = tuple([ask for ask in asked.asks if not injected.holds(ask.path, ask.resource.name)])
    return asked_in(asks, asked.strangers, asked.faults)
