"""`accounting check`: can every form of GPU be counted by one quota here, without a pod that waits for ever?

No API says what a scheduler is configured to ignore. What pods came to does: one that waits for the accounting
resource, or one that runs on a node that has none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from webhook.errors import ApiError, shorten_text
from webhook.installing.facts import PAGE_SIZE, CheckState, ClusterFacts, DiagnosticResult, list_all, read_cluster_facts
from webhook.installing.policies_health import load_installed_policies
from webhook.installing.scheduling_health import is_ignored_by_scheduler, pods_waiting_for_accounting
from webhook.kube.api import KubeClient
from webhook.manifests.scheduler_config import SECOND_SCHEDULER_NAME
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.policy.policy_set import LimitRules, Policy, PolicySet
from webhook.report.text import pluralize

Json = dict[str, Any]

QUOTA_KEY = f"requests.{ACCOUNTING_RESOURCE}"
SCHEDULER_SETTING = "limits.accountingScheduler: configured"
OFF_SETTING = 'limits.accounting: "off"'
"""In quotes: YAML takes a bare off for false."""
_DRY_RUN_POD = {
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
class AccountingFacts:
    """What `accounting check` looks at.

    Attributes:
        facts: The installation.
        running: Some pods that run.
        tried: What became of a pod with one GPU that was only tried: the pod, or why it was refused.
        namespace: Where it was tried.
        namespaces: All there are; empty where they cannot be read.
    """

    facts: ClusterFacts
    running_pods: list[Json]
    dry_run: Json | str
    namespace: str
    namespaces: list[Json]


async def read_accounting_facts(api: KubeClient, namespace: str) -> AccountingFacts:
    """Ask the API server; nothing is stored.

    Raises:
        ApiError: it does not answer, or does not let us see pods.
    """
    running, facts, tried, namespaces = await asyncio.gather(
        _list_running_pods(api), read_cluster_facts(api), _create_dry_run_pod(api, namespace), _list_namespaces(api)
    )
    return AccountingFacts(facts, running, tried, namespace, namespaces)


async def _list_running_pods(api: KubeClient) -> list[Json]:
    found = await api.get("/api/v1/pods", {"fieldSelector": "status.phase=Running", "limit": PAGE_SIZE})
    pods: list[Json] = found["items"]
    return pods


async def _list_namespaces(api: KubeClient) -> list[Json]:
    try:
        return await list_all(api, "/api/v1/namespaces")
    except ApiError:
        return []


async def _create_dry_run_pod(api: KubeClient, namespace: str) -> Json | str:
    try:
        return await api.create(f"/api/v1/namespaces/{namespace}/pods", _DRY_RUN_POD, {"dryRun": "All"})
    except ApiError as error:
        if error.status is None:
            raise
        return error.message


def accounting_results(seen: AccountingFacts) -> Iterator[DiagnosticResult]:
    """Each thing that has to be so, and what to do about it."""
    policies = load_installed_policies(seen.facts).policies or PolicySet()
    asking = [policy for policy in policies.policies if policy.limits and policy.limits.accounting]
    wanted = [policy.limits for policy in asking if policy.limits]
    yield _policy_result(wanted)
    yield _scheduler_result(seen, wanted)
    yield _node_result(seen)
    yield _dry_run_result(seen, asking)
    yield _quota_result(seen.facts)


def _policy_result(wanted: list[LimitRules]) -> DiagnosticResult:
    if wanted:
        return DiagnosticResult(
            CheckState.OK, f"{pluralize(len(wanted), 'policy asks', 'policies ask')} for {ACCOUNTING_RESOURCE}"
        )
    return DiagnosticResult(
        CheckState.WARN, "no policy that is an object asks for it", "limits.accounting: native, in a policy"
    )


def _scheduler_result(seen: AccountingFacts, wanted: list[LimitRules]) -> DiagnosticResult:
    waiting = pods_waiting_for_accounting(seen.facts)
    if waiting:
        advice = "rightslice accounting enable prints the scheduler's entry; until then " + OFF_SETTING
        return DiagnosticResult(
            CheckState.FAIL, f"{_pod_full_name(waiting[0])} is Pending: Insufficient {ACCOUNTING_RESOURCE}", advice
        )
    if any(limits.scheduler_ignores_accounting for limits in wanted):
        return DiagnosticResult(CheckState.OK, f"a policy says that schedulers ignore it ({SCHEDULER_SETTING})")
    if any(_runs_unadvertised(seen, pod) for pod in seen.running_pods):
        return DiagnosticResult(
            CheckState.OK,
            "the scheduler ignores it: a pod with it runs on a node without",
            f"write {SCHEDULER_SETTING}",
        )
    if is_ignored_by_scheduler(seen.facts.scheduler or ""):
        return DiagnosticResult(
            CheckState.OK,
            f"{SECOND_SCHEDULER_NAME} ignores it",
            f"if every other scheduler does too, write {SCHEDULER_SETTING}",
        )
    advice = f"if rightslice accounting enable's entry is in its configuration, write {SCHEDULER_SETTING}"
    return DiagnosticResult(CheckState.SKIP, "no API tells whether the scheduler ignores it", advice)


def _runs_unadvertised(seen: AccountingFacts, pod: Json) -> bool:
    there = {
        node["metadata"]["name"] for node in seen.facts.nodes or () if ACCOUNTING_RESOURCE not in _allocatable_of(node)
    }
    return pod["spec"].get("nodeName") in there and any(
        _accounting_request(one) not in ("", "0") for one in _containers_of_pod(pod)
    )


def _node_result(seen: AccountingFacts) -> DiagnosticResult:
    gpus = [node for node in seen.facts.nodes or () if any(map(parse_gpu_resource, _allocatable_of(node)))]
    bare = [node["metadata"]["name"] for node in gpus if ACCOUNTING_RESOURCE not in _allocatable_of(node)]
    if not gpus:
        return DiagnosticResult(CheckState.SKIP, "no node has GPUs")
    if not bare:
        return DiagnosticResult(
            CheckState.OK, f"{pluralize(len(gpus), 'GPU node advertises', 'GPU nodes advertise')} it"
        )
    what = f"{len(bare)} of {pluralize(len(gpus), 'GPU node')} do not advertise it"
    return DiagnosticResult(
        CheckState.SKIP, what, "needed only where the scheduler cannot ignore it: rightslice serve agent --gpu-milli"
    )


def _dry_run_result(seen: AccountingFacts, asking: Sequence[Policy]) -> DiagnosticResult:
    who = f"a pod with one GPU, only tried in {seen.namespace},"
    if isinstance(seen.dry_run, str) and _is_quota_exceeded(seen.dry_run):
        return DiagnosticResult(CheckState.OK, f"{who} was refused by a full quota on {QUOTA_KEY}: the quota works")
    if isinstance(seen.dry_run, str):
        return DiagnosticResult(CheckState.WARN, f"{who} was refused", shorten_text(seen.dry_run, 300))
    amounts = [_accounting_request(container) for container in _containers_of_pod(seen.dry_run)]
    if any(amount not in ("", "0") for amount in amounts):
        return DiagnosticResult(CheckState.OK, f"{who} is given {amounts[0]} of it")
    return _not_counted_result(seen, asking, who)


def _not_counted_result(seen: AccountingFacts, asking: Sequence[Policy], who: str) -> DiagnosticResult:
    """What to say of a pod that is given none of it: nobody asks for it there, or it is off."""
    asked = [one["metadata"]["name"] for one in seen.namespaces if _covers_namespace(asking, one)]
    if asking and seen.namespaces and seen.namespace not in asked:
        what = f"no policy asks for it in {seen.namespace}: a pod with one GPU is not given it there"
        return DiagnosticResult(
            CheckState.SKIP, what, f"where one asks: rightslice accounting check -n {(asked or ['NAMESPACE'])[0]}"
        )
    advice = (
        f"{SCHEDULER_SETTING} once the scheduler ignores it, or agents on all GPU "
        f"nodes advertise it; a policy must enforce it there"
    )
    return DiagnosticResult(CheckState.WARN, f"{who} is not given it: accounting is off (GPU-Q305)", advice)


def _covers_namespace(asking: Sequence[Policy], namespace: Json) -> bool:
    """Is a policy that asks for it about this namespace?"""
    metadata = namespace["metadata"]
    return any(policy.match.namespace(metadata["name"], metadata.get("labels") or {}) for policy in asking)


def _is_quota_exceeded(message: str) -> bool:
    """Is it what the API server, or our webhook, says of a pod that a quota on the resource has no room for?"""
    return "exceeded quota" in message and QUOTA_KEY in message


def _quota_result(facts: ClusterFacts) -> DiagnosticResult:
    if facts.quotas is None:
        return DiagnosticResult(CheckState.SKIP, "quotas cannot be read")
    where = sorted(
        {quota["metadata"]["namespace"] for quota in facts.quotas if QUOTA_KEY in quota["spec"].get("hard", {})}
    )
    if where:
        return DiagnosticResult(
            CheckState.OK, f"{pluralize(len(where), 'namespace has', 'namespaces have')} a quota on {QUOTA_KEY}"
        )
    return DiagnosticResult(
        CheckState.WARN, f"no quota on {QUOTA_KEY}", "rightslice accounting enable prints one to start from"
    )


def _allocatable_of(node: Json) -> Json:
    found: Json = (node.get("status") or {}).get("allocatable") or {}
    return found


def _containers_of_pod(pod: Json) -> list[Json]:
    found: list[Json] = pod["spec"]["containers"]
    return found


def _accounting_request(container: Json) -> str:
    requests = (container.get("resources") or {}).get("requests") or {}
    return str(requests.get(ACCOUNTING_RESOURCE, ""))


def _pod_full_name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
