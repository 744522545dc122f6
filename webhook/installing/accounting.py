"""`accounting check`: can every form of GPU be counted by one quota here, without a pod that waits for ever?

No API says what a scheduler is configured to ignore. What pods came to does: one that waits for the accounting
resource, or one that runs on a node that has none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from webhook.errors import ApiError, shorten
from webhook.installing.facts import PAGE, Facts, everything, read_facts
from webhook.installing.lines import Line, State
from webhook.installing.policies_health import loaded_from
from webhook.installing.scheduling_health import ignored, waiting_for_it
from webhook.kube.api import Api
from webhook.manifests.scheduling import SCHEDULER
from webhook.model.resources import ACCOUNTING, gpu_resource
from webhook.policy.compiled import Limits, Policy, PolicySet
from webhook.report.words import count

Json = dict[str, Any]

KEY = f"requests.{ACCOUNTING}"
WORD = "limits.accountingScheduler: configured"
OFF = 'limits.accounting: "off"'
"""In quotes: YAML takes a bare off for false."""
_TRIED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "rightslice-accounting-"},
    "spec": {
        "containers": [
            {
                "name": "tried",
                "image": "registry.k8s.io/pause",
                "resources": {"limits": {"cpu": "1m", "memory": "1Mi", "nvidia.com/gpu": "1"}},
            }
        ]
    },
}


@dataclass(frozen=True, slots=True)
class Accounted:
    """What `accounting check` looks at.

    Attributes:
        facts: The installation.
        running: Some pods that run.
        tried: What became of a pod with one GPU that was only tried: the pod, or why it was refused.
        namespace: Where it was tried.
        namespaces: All there are; empty where they cannot be read.
    """

    facts: Facts
    running: list[Json]
    tried: Json | str
    namespace: str
    namespaces: list[Json]


async def read_accounted(api: Api, namespace: str) -> Accounted:
    """Ask the API server; nothing is stored.

    Raises:
        ApiError: it does not answer, or does not let us see pods.
    """
    running, facts, tried, namespaces = await asyncio.gather(
        _running(api), read_facts(api), _try(api, namespace), _namespaces(api)
    )
    return Accounted(facts, running, tried, namespace, namespaces)


async def _running(api: Api) -> list[Json]:
    found = await api.get("/api/v1/pods", {"fieldSelector": "status.phase=Running", "limit": PAGE})
    pods: list[Json] = found["items"]
    return pods


async def _namespaces(api: Api) -> list[Json]:
    try:
        return await everything(api, "/api/v1/namespaces")
    except ApiError:
        return []


async def _try(api: Api, namespace: str) -> Json | str:
    try:
        return await api.create(f"/api/v1/namespaces/{namespace}/pods", _TRIED, {"dryRun": "All"})
    except ApiError as error:
        if error.status is None:
            raise
        return error.message


def accounting_lines(seen: Accounted) -> Iterator[Line]:
    """Each thing that has to be so, and what to do about it."""
    policies = loaded_from(seen.facts).policies or PolicySet()
    asking = [policy for policy in policies.policies if policy.limits and policy.limits.accounting]
    wanted = [policy.limits for policy in asking if policy.limits]
    yield _policy(wanted)
    yield _scheduler(seen, wanted)
    yield _nodes(seen)
    yield _written(seen, asking)
    yield _quota(seen.facts)


def _policy(wanted: list[Limits]) -> Line:
    if wanted:
        return Line(State.OK, f"{count(len(wanted), 'policy asks', 'policies ask')} for {ACCOUNTING}")
    return Line(State.WARN, "no policy that is an object asks for it", "limits.accounting: native, in a policy")


def _scheduler(seen: Accounted, wanted: list[Limits]) -> Line:
    waiting = waiting_for_it(seen.facts)
    if waiting:
        advice = "rightslice accounting enable prints the scheduler's entry; until then " + OFF
        return Line(State.FAIL, f"{_name(waiting[0])} is Pending: Insufficient {ACCOUNTING}", advice)
    if any(limits.ignored for limits in wanted):
        return Line(State.OK, f"a policy says that schedulers ignore it ({WORD})")
    if any(_runs_without(seen, pod) for pod in seen.running):
        return Line(State.OK, "the scheduler ignores it: a pod with it runs on a node without", f"write {WORD}")
    if ignored(seen.facts.scheduler or ""):
        return Line(State.OK, f"{SCHEDULER} ignores it", f"if every other scheduler does too, write {WORD}")
    advice = f"if rightslice accounting enable's entry is in its configuration, write {WORD}"
    return Line(State.SKIP, "no API tells whether the scheduler ignores it", advice)


def _runs_without(seen: Accounted, pod: Json) -> bool:
    there = {node["metadata"]["name"] for node in seen.facts.nodes or () if ACCOUNTING not in _allocatable(node)}
    return pod["spec"].get("nodeName") in there and any(_asked(one) not in ("", "0") for one in _containers(pod))


def _nodes(seen: Accounted) -> Line:
    gpus = [node for node in seen.facts.nodes or () if any(map(gpu_resource, _allocatable(node)))]
    bare = [node["metadata"]["name"] for node in gpus if ACCOUNTING not in _allocatable(node)]
    if not gpus:
        return Line(State.SKIP, "no node has GPUs")
    if not bare:
        return Line(State.OK, f"{count(len(gpus), 'GPU node advertises', 'GPU nodes advertise')} it")
    what = f"{len(bare)} of {count(len(gpus), 'GPU node')} do not advertise it"
    return Line(
        State.SKIP, what, "needed only where the scheduler cannot ignore it: rightslice serve agent --gpu-milli"
    )


def _written(seen: Accounted, asking: Sequence[Policy]) -> Line:
    who = f"a pod with one GPU, only tried in {seen.namespace},"
    if isinstance(seen.tried, str) and _is_full(seen.tried):
        return Line(State.OK, f"{who} was refused by a full quota on {KEY}: the quota works")
    if isinstance(seen.tried, str):
        return Line(State.WARN, f"{who} was refused", shorten(seen.tried, 300))
    amounts = [_asked(container) for container in _containers(seen.tried)]
    if any(amount not in ("", "0") for amount in amounts):
        return Line(State.OK, f"{who} is given {amounts[0]} of it")
    return _not_given(seen, asking, who)


def _not_given(seen: Accounted, asking: Sequence[Policy], who: str) -> Line:
    """What to say of a pod that is given none of it: nobody asks for it there, or it is off."""
    asked = [one["metadata"]["name"] for one in seen.namespaces if _asks(asking, one)]
    if asking and seen.namespaces and seen.namespace not in asked:
        what = f"no policy asks for it in {seen.namespace}: a pod with one GPU is not given it there"
        return Line(State.SKIP, what, f"where one asks: rightslice accounting check -n {(asked or ['NAMESPACE'])[0]}")
    advice = (
        f"{WORD} once the scheduler ignores it, or agents on all GPU nodes advertise it; a policy must enforce it there"
    )
    return Line(State.WARN, f"{who} is not given it: accounting is off (GPU-Q305)", advice)


def _asks(asking: Sequence[Policy], namespace: Json) -> bool:
    """Is a policy that asks for it about this namespace?"""
    metadata = namespace["metadata"]
    return any(policy.match.namespace(metadata["name"], metadata.get("labels") or {}) for policy in asking)


def _is_full(message: str) -> bool:
    """Is it what the API server, or our webhook, says of a pod that a quota on the resource has no room for?"""
    return "exceeded quota" in message and KEY in message


def _quota(facts: Facts) -> Line:
    if facts.quotas is None:
        return Line(State.SKIP, "quotas cannot be read")
    where = sorted({quota["metadata"]["namespace"] for quota in facts.quotas if KEY in quota["spec"].get("hard", {})})
    if where:
        return Line(State.OK, f"{count(len(where), 'namespace has', 'namespaces have')} a quota on {KEY}")
    return Line(State.WARN, f"no quota on {KEY}", "rightslice accounting enable prints one to start from")


def _allocatable(node: Json) -> Json:
    found: Json = (node.get("status") or {}).get("allocatable") or {}
    return found


def _containers(pod: Json) -> list[Json]:
    found: list[Json] = pod["spec"]["containers"]
    return found


def _asked(container: Json) -> str:
    requests = (container.get("resources") or {}).get("requests") or {}
    return str(requests.get(ACCOUNTING, ""))


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
