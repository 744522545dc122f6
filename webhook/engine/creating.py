"""Steps 3 to 6 for a pod on its way in: its shape, and what speaks against the pod in that shape.

A pod that is stored already keeps its shape; nothing here is asked about it.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.accounting import clear_others, names_accounting
from webhook.engine.asking import Asked, asked_in
from webhook.engine.case import Case
from webhook.engine.judge import judge, judge_amounts
from webhook.engine.limitrange import NOBODY, Given, Injected, take_out
from webhook.engine.remarks import Remark
from webhook.engine.rules import NOTHING_ADDED, Rules
from webhook.engine.settle import hear
from webhook.engine.shape import Shape
from webhook.engine.shaping import NOT_ASKED, shape_pod
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Fit, Keep, Why
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.usage import UsageView

NO_ROOM = Keep(Why.NO_ROOM)


class Created(NamedTuple):
    """What becomes of a pod.

    Attributes:
        left: What it asks for, without GPUs that are taken out again.
        shape: None where nothing is said of its amounts and so nothing is changed.
        outcome: What became of its size.
    """

    left: Asked
    shape: Shape | None = None
    outcome: Fit | Keep = NOT_ASKED


def create(
    request: Request,
    pod: Pod,
    asked: Asked,
    given: tuple[Given, ...],
    rules: Rules,
    view: ClusterView,
    usage: UsageView,
    findings: list[Finding],
) -> Created:
    """Shape a pod and judge the shape.

    Args:
        given: GPUs that LimitRanges put in.
        findings: What is found is added to these.
    """
    if not rules.names or not (asked.asks or given or _is_bounded(request, pod, rules, view)):
        return Created(asked)
    shape = Shape(pod)
    injected = Injected(given) if given else NOBODY
    if given and rules.takes_out and not pod.final:
        shape.speaker = rules.takes_out
        injected = take_out(pod, shape, given, view.ranges(request.namespace))
    left = _without(injected, asked) if injected.out else asked
    if left.asks:
        case = Case(request, pod, left, rules, view, usage, injected)
        outcome = shape_pod(case, shape, findings)
        judge(case, shape, findings)
        return Created(left, shape, outcome)
    if rules.accounting:
        shape.speaker = rules.accounting
        clear_others(shape)
    judge_amounts(request, shape, rules, view, injected, findings)
    return Created(left, shape)


def leave(
    request: Request,
    pod: Pod,
    asked: Asked,
    given: tuple[Given, ...],
    rules: Rules,
    view: ClusterView,
    usage: UsageView,
    findings: list[Finding],
    speaker: str,
) -> Created:
    """Judge a pod as it came: what would be written into it finds no room.

    Args:
        findings: What is found is added to these.
        speaker: The policies that would have changed it.
    """
    shape, injected = Shape(pod), Injected(given) if given else NOBODY
    path, fix = ("metadata", "annotations"), "Shorten its annotations; all of them may have 256 KiB together."
    hear(findings, (Mode.WARN, speaker), (Remark("GPU-R103", path, f"stays as it is: {NO_ROOM}", fix),))
    if asked.asks:
        without = replace(rules, adds=NOTHING_ADDED)
        judge(Case(request, pod, asked, without, view, usage, injected), shape, findings)
    else:
        judge_amounts(request, shape, rules, view, injected, findings)
    return Created(asked, shape, NO_ROOM)


def _is_bounded(request: Request, pod: Pod, rules: Rules, view: ClusterView) -> bool:
    """Is there something to say, or to write, to a pod without GPUs?

    What the namespace's LimitRanges and quotas will say, if some policy speaks for them; and the accounting resource
    is nobody's own to write.
    """
    if not rules.limits:
        return False
    if view.ranges(request.namespace) or view.quota_room(request.namespace):
        return True
    return bool(rules.accounting) and names_accounting(pod)


def _without(injected: Injected, asked: Asked) -> Asked:
    """What is left to ask for once GPUs that nobody asked for are taken out."""
    asks = tuple([ask for ask in asked.asks if not injected.holds(ask.path, ask.resource.name)])
    return asked_in(asks, asked.strangers, asked.faults)
