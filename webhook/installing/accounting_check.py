"""`accounting check`: can one quota count every form of GPU here, without leaving pods Pending?

No API reports which resources a scheduler ignores. Pods show it: one waits for the accounting resource, or one with it
runs on a node that does not advertise it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webhook.errors import ApiError
from webhook.installing.cluster_health import load_installed_policies
from webhook.installing.facts import PAGE_SIZE, ClusterFacts, DiagnosticResult, list_all, read_cluster_facts
from webhook.installing.scheduling_health import is_ignored_by_scheduler, pods_waiting_for_accounting
from webhook.kube.api import KubeClient
from webhook.manifests.scheduler_config import SECOND_SCHEDULER_NAME
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.policy.policy_set import LimitRules, Policy, PolicySet
from webhook.report.text import pluralize
from webhook.well_known import Json

QUOTA_KEY = f"requests.{ACCOUNTING_RESOURCE}"
SCHEDULER_SETTING = "limits.accountingScheduler: configured"
OFF_SETTING = 'limits.accounting: "off"'
"""Quoted, because YAML reads a bare off as false."""
_DRY_RUN_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "rightslice-accounting-"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.k8s.io/pause",
                "resources": {"limits": {"cpu": "1m", "memory": "1Mi", "nvidia.com/gpu": "1"}},
            }
        ]
    },
}


@dataclass(frozen=True, slots=True)
class AccountingFacts:
    """Facts for `accounting check`.

    Attributes:
        running_pods: One page of running pods.
        dry_run: A dry-run pod with one GPU after admission, or the error that rejected it.
        namespace: The namespace of the dry run.
        namespaces: All namespaces; empty if they cannot be read.
    """

    cluster: ClusterFacts
    running_pods: list[Json]
    dry_run: Json | str
    namespace: str
    namespaces: list[Json]


async def read_accounting_facts(api: KubeClient, namespace: str) -> AccountingFacts:
    """Read the facts; nothing is stored.

    Raises:
        ApiError: The API server does not answer, or pods cannot be read.
    """
    running, cluster, dry_run, namespaces = await asyncio.gather(
        api.get("/api/v1/pods", {"fieldSelector": "status.phase=Running", "limit": PAGE_SIZE}),
        read_cluster_facts(api),
        _create_dry_run_pod(api, namespace),
        _list_namespaces(api),
    )
    return AccountingFacts(cluster, running["items"], dry_run, namespace, namespaces)


async def _list_namespaces(api: KubeClient) -> list[Json]:
    try:
        return await list_all(api, "/api/v1/namespaces")
    except ApiError:
        return []


async def _create_dry_run_pod(api: KubeClient, namespace: str) -> Json | str:
    try:
        return await api.create(f"/api/v1/namespaces/{namespace}/pods", _DRY_RUN_POD, {"dryRun": "All"})
    except ApiError as error:
        if not error.status:
            raise
        return error.message


def accounting_results(facts: AccountingFacts) -> Iterator[DiagnosticResult]:
    """Yield the result of each requirement."""
    policies = load_installed_policies(facts.cluster).policies or PolicySet()
    adding = [policy for policy in policies.policies if policy.limits and policy.limits.accounting]
    limits = [policy.limits for policy in adding if policy.limits]
    yield _policy_result(len(limits))._replace(check="policies")
    yield _scheduler_result(facts, limits)._replace(check="scheduler")
    yield _node_result(facts)._replace(check="nodes")
    yield _dry_run_result(facts, adding)._replace(check="pod")
    yield _quota_result(facts.cluster)._replace(check="quotas")


def _policy_result(adding: int) -> DiagnosticResult:
    if adding:
        return DiagnosticResult.ok(f"{pluralize(adding, 'policy adds', 'policies add')} {ACCOUNTING_RESOURCE}")
    return DiagnosticResult.warn("no GPUPolicy object adds it", "set limits.accounting: native in a policy")


def _scheduler_result(facts: AccountingFacts, limits: list[LimitRules]) -> DiagnosticResult:
    waiting = pods_waiting_for_accounting(facts.cluster)
    if waiting:
        advice = "rightslice accounting enable prints the scheduler's entry; until then " + OFF_SETTING
        pod = "/".join(waiting[0]["metadata"][field] for field in ("namespace", "name"))
        return DiagnosticResult.fail(f"{pod} is Pending: Insufficient {ACCOUNTING_RESOURCE}", advice)
    if any(each.scheduler_ignores_accounting for each in limits):
        return DiagnosticResult.ok(f"a policy says that schedulers ignore it ({SCHEDULER_SETTING})")
    if any(_runs_unadvertised(facts, pod) for pod in facts.running_pods):
        summary = "the scheduler ignores it: a pod with it runs on a node that does not advertise it"
        return DiagnosticResult.ok(summary, f"set {SCHEDULER_SETTING}")
    if is_ignored_by_scheduler(facts.cluster.scheduler or ""):
        advice = f"if all other schedulers do too, set {SCHEDULER_SETTING}"
        return DiagnosticResult.ok(f"{SECOND_SCHEDULER_NAME} ignores it", advice)
    advice = f"if its configuration has the entry of rightslice accounting enable, set {SCHEDULER_SETTING}"
    return DiagnosticResult.skip("whether the scheduler ignores it cannot be read from any API", advice)


def _runs_unadvertised(facts: AccountingFacts, pod: Json) -> bool:
    nodes = facts.cluster.nodes or ()
    bare = {node["metadata"]["name"] for node in nodes if ACCOUNTING_RESOURCE not in _allocatable_of(node)}
    requests = map(_accounting_request, pod["spec"]["containers"])
    return pod["spec"].get("nodeName") in bare and any(amount not in ("", "0") for amount in requests)


def _node_result(facts: AccountingFacts) -> DiagnosticResult:
    gpus = [node for node in facts.cluster.nodes or () if any(map(parse_gpu_resource, _allocatable_of(node)))]
    bare = [node["metadata"]["name"] for node in gpus if ACCOUNTING_RESOURCE not in _allocatable_of(node)]
    if not gpus:
        return DiagnosticResult.skip("no node has GPUs")
    if not bare:
        return DiagnosticResult.ok(f"{pluralize(len(gpus), 'GPU node advertises', 'GPU nodes advertise')} it")
    summary = f"{len(bare)} of {pluralize(len(gpus), 'GPU node')} do not advertise it"
    advice = "required only if the scheduler cannot ignore it: rightslice serve agent --gpu-milli"
    return DiagnosticResult.skip(summary, advice)


def _dry_run_result(facts: AccountingFacts, adding: Sequence[Policy]) -> DiagnosticResult:
    pod = f"a dry-run pod with one GPU in {facts.namespace}"
    if isinstance(facts.dry_run, str) and "exceeded quota" in facts.dry_run and QUOTA_KEY in facts.dry_run:
        return DiagnosticResult.ok(f"{pod} was rejected by a full quota on {QUOTA_KEY}: the quota works")
    if isinstance(facts.dry_run, str):
        return DiagnosticResult.warn(f"{pod} was rejected", facts.dry_run)
    amounts = [_accounting_request(container) for container in facts.dry_run["spec"]["containers"]]
    if any(amount not in ("", "0") for amount in amounts):
        return DiagnosticResult.ok(f"{pod} gets {amounts[0]} of it")
    return _not_counted_result(facts, adding, pod)


def _not_counted_result(facts: AccountingFacts, adding: Sequence[Policy], pod: str) -> DiagnosticResult:
    """Return the result for a pod without the resource: no policy adds it there, or accounting is off."""
    named = [(one["metadata"]["name"], one["metadata"].get("labels") or {}) for one in facts.namespaces]
    covered = [name for name, labels in named if any(policy.match.namespace(name, labels) for policy in adding)]
    if adding and facts.namespaces and facts.namespace not in covered:
        summary = f"no policy adds it in {facts.namespace}, so a pod with one GPU does not get it there"
        advice = f"check a namespace with such a policy: rightslice accounting check -n {(covered or ['NAMESPACE'])[0]}"
        return DiagnosticResult.skip(summary, advice)
    advice = (
        f"set {SCHEDULER_SETTING} once the scheduler ignores it, or let the agents of all GPU nodes advertise it; "
        "the policy must be enforced there"
    )
    return DiagnosticResult.warn(f"{pod} does not get it: accounting is off (GPU-Q305)", advice)


def _quota_result(facts: ClusterFacts) -> DiagnosticResult:
    if facts.quotas is None:
        return DiagnosticResult.skip("quotas cannot be read")
    with_key = [quota for quota in facts.quotas if QUOTA_KEY in quota["spec"].get("hard", {})]
    if namespaces := {quota["metadata"]["namespace"] for quota in with_key}:
        count = pluralize(len(namespaces), "namespace has", "namespaces have")
        return DiagnosticResult.ok(f"{count} a quota on {QUOTA_KEY}")
    return DiagnosticResult.warn(f"no quota on {QUOTA_KEY}", "rightslice accounting enable prints an example")


def _allocatable_of(node: Json) -> Json:
    found: Json = (node.get("status") or {}).get("allocatable") or {}
    return found


def _accounting_request(container: Json) -> str:
    requests = (container.get("resources") or {}).get("requests") or {}
    return str(requests.get(ACCOUNTING_RESOURCE, ""))
