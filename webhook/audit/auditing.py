"""Judge every pod of a snapshot as if it were created again now.

Each pod is taken by itself, in the cluster as it stands: its own use is taken out of its quotas, and its GPUs
still count as in use. What all pods would come to together is less where slices are few.

What a bound pod holds is priced by its own node. A pod that would get no less than it holds already stays as it
is; a saving is only what is less, of a pod that would be let in: GPUs that a policy takes out again among it. A
static pod saves nothing: its node runs it by a file of its own, which no webhook changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from webhook.audit.bound import held_milli, node_of
from webhook.audit.checking import DEFAULT_NAMESPACE, POD, World, check, check_all, group_of, namespace_of, request_of
from webhook.audit.manifests import Entry, Passed
from webhook.audit.standing import becoming, uses_of, why_missed, without_kubelet_marks
from webhook.audit.views import without_use
from webhook.cache.gathering import FINISHED
from webhook.engine.asking import Asked, asked_by
from webhook.errors import ReviewError
from webhook.model.decisions import Decision, Fit, Keep, Why
from webhook.model.workloads import workload_of
from webhook.policy.compiled import PolicySet
from webhook.report.results import Checked, Missed, Standing, skipped

Price = Callable[[Mapping[str, int]], int]
"""Thousandths of a GPU that units of resources take on the pod's own node."""


def audit_all(found: Iterable[Entry | Passed], world: World) -> Iterator[Checked]:
    """Judge the pods among what was found; faults in files come out as skipped, other objects do not."""
    unsized = without_sizing(world.policies)
    for each in found:
        if isinstance(each, Passed):
            if each.broken:
                yield skipped(each.place, each.reason, broken=True)
        elif holds(each.data):
            yield audit_pod(each, world, unsized)


def explain_all(found: Iterable[Entry | Passed], world: World) -> Iterator[Checked]:
    """Judge what was found in files. Pods that a cluster has stored are judged as an audit does: they run already."""
    unsized = without_sizing(world.policies)
    for each in found:
        if isinstance(each, Entry) and is_pod(each.data) and is_stored(each.data):
            yield audit_pod(each, world, unsized)
        else:
            yield from check_all([each], world)


def audit_pod(entry: Entry, world: World, unsized: PolicySet) -> Checked:
    """Judge one pod.

    Args:
        unsized: The world's policies without right-sizing, for a pod that would gain nothing by it, or cannot.
    """
    again = msgspec.structs.replace(entry, data=as_created_again(entry.data))
    try:
        request = request_of(again.data, world)
    except ReviewError:
        return check(again, world)
    assert request.pod is not None
    asked = asked_by(request.pod)
    node = node_of(entry.data)
    view = without_use(world.view, request.namespace, request.pod, runs=bool(node))
    vacated = msgspec.structs.replace(world, view=view)
    price = partial(held_milli, node=node, fleet=world.view.fleet)
    result = check(again, vacated)
    if not _gains(result.decision, price):
        result = check(again, msgspec.structs.replace(vacated, policies=unsized))
    priced = _priced(result, asked, price)
    missed = why_missed(entry.data, request.namespace, priced.decision)
    becomes = becoming(priced.decision) if missed else ""
    if missed is Missed.STATIC:
        priced = _as_it_is(check(again, msgspec.structs.replace(vacated, policies=unsized)), price(asked.totals))
    uses = uses_of(asked, request.namespace, request.pod, world, priced.decision.outcome)
    standing = Standing(workload_of(request.pod), missed, becomes, uses)
    return msgspec.structs.replace(priced, node=node, standing=standing)


def _gains(decision: Decision, price: Price) -> bool:
    """Is what right-sizing has for the pod less than what is left of it? True where it has nothing for it."""
    fit = decision.outcome
    return not isinstance(fit, Fit) or fit.gpu_milli < price(decision.left)


def _priced(result: Checked, asked: Asked, price: Price) -> Checked:
    decision = result.decision
    fit = decision.outcome if not decision.denials else None
    left = price(asked.totals if decision.denials else decision.left)
    becomes = fit.gpu_milli if isinstance(fit, Fit) else left
    after, on_trial = (becomes, 0) if decision.applied else (left, left - becomes)
    decision = msgspec.structs.replace(decision, gpu_milli_before=price(asked.totals), gpu_milli_after=after)
    return msgspec.structs.replace(result, decision=decision, gpu_milli_on_trial=on_trial)


def _as_it_is(static: Checked, held: int) -> Checked:
    """A static pod keeps what it holds, in thousandths of a GPU, whatever is found in it."""
    changes = {"outcome": Keep(Why.MIRROR), "applied": False, "patch": ()}
    decision = msgspec.structs.replace(static.decision, **changes, gpu_milli_before=held, gpu_milli_after=held)
    return msgspec.structs.replace(static, decision=decision)


def without_sizing(policies: PolicySet) -> PolicySet:
    """The policies without their right-sizing sections."""
    unsized = (msgspec.structs.replace(policy, right_sizing=None) for policy in policies.policies)
    return PolicySet(unsized, policies.exemptions, policies.templates)


def is_pod(data: dict[str, Any]) -> bool:
    """Is this object a Pod?"""
    return (group_of(data["apiVersion"]), data["kind"]) == POD


def holds(data: dict[str, Any]) -> bool:
    """Is this object a Pod that has not ended?"""
    return is_pod(data) and phase_of(data) not in FINISHED


def given_once(found: Sequence[Entry | Passed]) -> list[Entry | Passed]:
    """The same with each pod once, as dumps that overlap hold one twice: the later one counts, as in a snapshot."""
    last = {key: place for place, each in enumerate(found) if (key := _identity(each))}
    return [each for place, each in enumerate(found) if last.get(_identity(each), place) == place]


def pod_among(found: Sequence[Entry | Passed], namespace: str, name: str) -> Entry | None:
    """The pod of this name among what was found, the last one that is given; None where there is none."""
    same = (each for each in reversed(found) if _identity(each) == (namespace, name))
    return next((each for each in same if isinstance(each, Entry)), None)


def _identity(found: Entry | Passed) -> tuple[str, ...]:
    """Namespace and name of a pod; () for one that has no name yet, and for everything else."""
    if not isinstance(found, Entry) or not is_pod(found.data):
        return ()
    metadata = found.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return (namespace_of(found.data) or DEFAULT_NAMESPACE, name) if isinstance(name, str) and name else ()


def is_stored(data: dict[str, Any]) -> bool:
    """Is this object one that an API server has stored? It gave it a uid then."""
    metadata = data.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("uid"))


def as_created_again(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what the cluster gave it: its uid, node, status, and the kubelet's marks on a static pod."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return pod
    again = _without(pod, "status") | {"spec": _without(spec, "nodeName")}
    return again | {"metadata": without_kubelet_marks(_without(metadata, "uid"))}


def _without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def phase_of(pod: dict[str, Any]) -> object:
    """The phase that the cluster says a pod is in; None where it says none."""
    status = pod.get("status")
    return status.get("phase") if isinstance(status, dict) else None
