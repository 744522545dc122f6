"""Step 4 before any need is looked at: pods whose request stays as it is."""

from __future__ import annotations

from webhook.engine.case import Case
from webhook.model.decisions import Keep, Why
from webhook.model.pods import Pod
from webhook.model.queueing import queued_by
from webhook.model.records import KEEP, MIRROR
from webhook.model.resources import WHOLE_GPU


def stays(case: Case) -> Keep | None:
    """Why a pod keeps what it asks for, whatever it needs; None where its need decides."""
    total = case.asked.totals.get(WHOLE_GPU)
    if total is None:
        return Keep(Why.NO_GPU)
    kept = set_apart(case)
    return Keep(Why.SEVERAL_GPUS) if kept is None and total > 1 else kept


def set_apart(case: Case) -> Keep | None:
    """Why nothing follows for a pod from what is free now, however many whole GPUs it asks for; None where it does."""
    asked, pod = case.asked, case.pod
    if pod.metadata.annotations.get(KEEP, "false") != "false":
        return Keep(Why.OPTED_OUT)
    if asked.faults:
        return Keep(Why.UNSURE_AMOUNT)
    if case.injected.given and any(case.injected.holds(ask.path, ask.resource.name) for ask in asked.asks):
        return Keep(Why.INJECTED)
    if len(asked.totals) > 1 or asked.strangers:
        return Keep(Why.MIXED, ", ".join((*asked.totals, *asked.strangers)))
    return _not_ours(pod)


def is_placed(pod: Pod) -> bool:
    """Does a pod come with its node, past every scheduler?"""
    return bool(pod.spec.node_name) or is_mirror(pod)


def is_mirror(pod: Pod) -> bool:
    """Does a pod only show what a node runs by a file of its own? No kubelet runs a mirror that somebody else made."""
    return MIRROR in pod.metadata.annotations


def _not_ours(pod: Pod) -> Keep | None:
    """Pods that another component made, placed or budgeted."""
    metadata, spec = pod.metadata, pod.spec
    for owner in metadata.owner_references:
        if owner.kind == "DaemonSet":
            return Keep(Why.DAEMON_SET)
    if is_mirror(pod):
        return Keep(Why.MIRROR)
    if spec.node_name:
        return Keep(Why.BOUND)
    if spec.resource_claims:
        return Keep(Why.CLAIMS)
    sign = queued_by(pod)
    if sign:
        return Keep(Why.QUEUED, sign)
    if spec.scheduling_gates:
        return Keep(Why.GATED, spec.scheduling_gates[0].name)
    return None
