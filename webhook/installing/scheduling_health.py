"""`doctor` on what schedulers are told: the accounting resource, the extender, and what agents say of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from webhook.documents.reading import read
from webhook.errors import DocumentError, shorten
from webhook.installing.cluster_health import gpu_nodes, some
from webhook.installing.facts import Facts
from webhook.installing.lines import Line, State, unread
from webhook.manifests.hooks import NAMESPACE
from webhook.manifests.scheduling import SCHEDULER
from webhook.model.resources import ACCOUNTING
from webhook.policy.compiled import Policy
from webhook.report.words import count

Json = dict[str, Any]

SILENT = timedelta(minutes=6)
"""An agent renews its Lease every two minutes: it has missed three."""

TELL = (
    "tell the scheduler to ignore it (an extender's managedResources), "
    "or have the agents of all GPU nodes advertise it (--gpu-milli)"
)
LOOK = f"kubectl -n {NAMESPACE} get pods -o wide -l app.kubernetes.io/component"


def accounting(facts: Facts, policies: Sequence[Policy]) -> Iterator[Line]:
    """Does nobody wait for the accounting resource where a policy asks for it?

    The configuration of a scheduler that is no object cannot be seen; pods that wait because of it can.
    """
    wanted = [policy.limits for policy in policies if policy.limits is not None and policy.limits.accounting]
    if not wanted:
        return
    waiting = waiting_for_it(facts)
    nodes = gpu_nodes(facts)
    bare = [node for node in nodes if ACCOUNTING not in node["status"]["allocatable"]]
    if waiting:
        yield Line(State.FAIL, f"{count(len(waiting), 'pod waits', 'pods wait')} for {ACCOUNTING}", TELL)
    elif nodes and not bare:
        yield Line(State.OK, f"{count(len(nodes), 'GPU node advertises', 'GPU nodes advertise')} {ACCOUNTING}")
    elif any(limits.ignored for limits in wanted):
        yield Line(State.OK, f"a policy says that schedulers ignore {ACCOUNTING}")
    elif ignored(facts.scheduler or ""):
        yield Line(State.OK, f"{SCHEDULER} ignores {ACCOUNTING}", "of other schedulers it cannot be seen here")
    else:
        advice = f"it is left out, so that no pod waits for it: {TELL}; rightslice accounting check says more"
        who = f"{len(bare)} of {count(len(nodes), 'GPU node')} do not advertise" if nodes else "no node advertises"
        yield Line(State.WARN, f"a policy has native accounting, and {who} its resource", advice)


def waiting_for_it(facts: Facts) -> list[Json]:
    """The pods that wait for the accounting resource."""
    return [pod for pod in facts.waiting or () if f"Insufficient {ACCOUNTING}" in _why_waiting(pod)]


def _why_waiting(pod: Json) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return " ".join(str(one.get("message") or "") for one in conditions if one["type"] == "PodScheduled")


def ignored(configuration: str) -> bool:
    """Does the text of a KubeSchedulerConfiguration have the accounting resource ignored?"""
    try:
        configurations = [found.data for found in read(configuration, SCHEDULER, aliases=True)]
    except DocumentError:
        return False
    extenders = [one for found in configurations if isinstance(found, dict) for one in found.get("extenders") or ()]
    managed = [each for one in extenders for each in one.get("managedResources") or ()]
    return any(each.get("name") == ACCOUNTING and each.get("ignoredByScheduler") for each in managed)


def extender(facts: Facts) -> Iterator[Line]:
    """If the extender is installed: are its replicas ready, and what does one say of itself?"""
    if facts.extender is None:
        if facts.refused["extender"].status != 404:
            yield unread(facts, "extender", "", "")
        return
    ready = (facts.extender.get("status") or {}).get("readyReplicas", 0)
    wanted = facts.extender["spec"].get("replicas", 1)
    good = ready >= wanted
    look = "" if good else f"schedulers go on without it: {LOOK}=extender"
    yield Line(State.OK if good else State.FAIL, f"{ready} of {wanted} replicas of the extender ready", look)
    if facts.extender_ready is None:
        unseen = "its Service cannot be reached through the API server"
        yield Line(State.SKIP, "the extender could not be asked", unseen)
        return
    for line in facts.extender_ready.splitlines():
        if line.startswith("[-]"):
            yield Line(State.WARN, f"extender: {shorten(line[3:], 200)}", "its log says more")


def agents(facts: Facts, now: datetime) -> Iterator[Line]:
    """Are GPUNodes there for the nodes with GPUs, whole, and kept?"""
    if facts.agents is None and facts.refused["agents"].status != 404:
        yield unread(facts, "agents", "", "")
        return
    if not facts.agents:
        advice = "which GPUs are free, and how they are joined, goes by labels: kubectl apply -k manifests/agent"
        yield Line(State.SKIP, "no agent reports the GPUs of its node", advice)
        return
    said = {one["metadata"]["name"]: one.get("status") or {} for one in facts.agents}
    unsaid = [node["metadata"]["name"] for node in gpu_nodes(facts) if node["metadata"]["name"] not in said]
    if unsaid:
        yield Line(State.WARN, f"{count(len(unsaid), 'GPU node')} without GPUNode: {some(unsaid)}", f"{LOOK}=agent")
    yield from _kept(facts.agents, facts.leases, now)
    for name, status in said.items():
        if status.get("message"):
            yield Line(State.WARN, f"GPUNode {name}: {shorten(status['message'], 160)}", "its agent's log says more")


def _kept(agents: list[Json], leases: list[Json] | None, now: datetime) -> Iterator[Line]:
    every = count(len(agents), "GPUNode")
    if leases is None:
        yield Line(State.SKIP, f"{every}, and it cannot be seen whether they are kept")
        return
    renewed = {one["metadata"]["name"]: (one.get("spec") or {}).get("renewTime") for one in leases}
    made = {one["metadata"]["name"]: one["metadata"].get("creationTimestamp") for one in agents}
    late = [name for name in sorted(made) if not _is_recent(renewed.get(name), now)]
    young = [name for name in late if _is_recent(made[name], now)]
    silent = [name for name in late if name not in young]
    minutes = SILENT.seconds // 60
    if silent:
        advice = f"their agents have been silent for {minutes} minutes or more: {LOOK}=agent"
        yield Line(State.WARN, f"{len(silent)} of {every} not kept: {some(silent)}", advice)
    if young:
        what = f"{len(young)} of {every} made less than {minutes} minutes ago, and not kept yet: {some(young)}"
        yield Line(State.SKIP, what, "look again later")
    if not late:
        yield Line(State.OK, f"{every}, each kept by its agent")


def _is_recent(moment: str | None, now: datetime) -> bool:
    try:
        return moment is not None and now - datetime.fromisoformat(moment) < SILENT
    except (ValueError, TypeError):
        return False
