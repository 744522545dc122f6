"""Facts for `doctor`, read once from the API server, each independently of the others; the results of checks; and the
settings of the current installation: mode, image, and source of the certificate.

A dry-run pod shows whether both webhooks answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple, Self

from webhook.cache.informers import RESOURCE_SLICES
from webhook.errors import ApiError, ApiUnreachable
from webhook.kube.api import NO_PARAMS, KubeClient, find_object
from webhook.kube.decoder import ResourceDecoder
from webhook.kube.installation import VALIDATING_PATH, WEBHOOKS_PATH, find_installed_namespace, namespace_of_service
from webhook.manifests.scheduler_config import EXTENDER_NAME, SECOND_SCHEDULER_NAME
from webhook.manifests.sent_resources import read_sent_resources
from webhook.model.annotations import PROBE_ANNOTATION, PROBE_ANSWER
from webhook.model.dra.resource_slices import PackedSlice, ResourceSlice, SlicePacker
from webhook.model.gpu_resources import MIG_PREFIX
from webhook.model.node_groups import MACHINE_API_VERSION, NODE_OVERLAY_API_VERSION, NODE_POOL_API_VERSION
from webhook.model.queues import KUEUE_API_VERSION, OLDER_KUEUE_API_VERSION, POD_SET_LABEL
from webhook.well_known import AGENT_NAMESPACE, APP_NAME, GROUP_PATH, SYSTEM_NAMESPACE, Json


class CheckState(StrEnum):
    """State of a check. FAIL and WARN need action."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class DiagnosticResult(NamedTuple):
    """One line of `doctor`: a summary, and the fix or an explanation.

    Attributes:
        check: The name of what was checked; set by the command.
    """

    state: CheckState
    summary: str
    advice: str = ""
    check: str = ""

    @classmethod
    def ok(cls, summary: str, advice: str = "") -> Self:
        """Return a result that needs no action."""
        return cls(CheckState.OK, summary, advice)

    @classmethod
    def warn(cls, summary: str, advice: str = "") -> Self:
        """Return a warning."""
        return cls(CheckState.WARN, summary, advice)

    @classmethod
    def fail(cls, summary: str, advice: str = "") -> Self:
        """Return a failure."""
        return cls(CheckState.FAIL, summary, advice)

    @classmethod
    def skip(cls, summary: str, advice: str = "") -> Self:
        """Return the result of a check that could not be made."""
        return cls(CheckState.SKIP, summary, advice)


PAGE_SIZE = "500"
MAX_PARTITIONED_NODES = 50
"""Nodes with MIG slices whose pods are read."""

FAIL_OPEN_METRIC = "apiserver_admission_webhook_fail_open_count"
OUTSIDE_COMMAND = "kubectl apply --server-side -k manifests/overlays/out-of-cluster (docs/install.md#out-of-cluster)"
HELM_COMMAND = f"helm install {APP_NAME} charts/rightslice -n {SYSTEM_NAMESPACE} --create-namespace"

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All facts. A part that could not be read is None, and `refused` has the error under its name."""

    version: Json
    mutating: Json | None
    validating: Json | None
    backstop: Json | None
    deployment: Json | None
    secret: Json | None
    settings: Json | None
    client_ca: Json | None
    authentication: Json | None
    ready: str | None
    answer: str | None
    metrics: str | None
    policies: list[Json] | None
    exceptions: list[Json] | None
    nodes: list[Json] | None
    limit_ranges: list[Json] | None
    quotas: list[Json] | None
    device_classes: list[Json] | None
    extender: Json | None
    extender_ready: str | None
    scheduler: str | None
    waiting: list[Json] | None
    agents: list[Json] | None
    leases: list[Json] | None
    workloads: list[Json] | None
    queued_pods: list[Json] | None
    overlays: list[Json] | None
    node_pools: list[Json] | None
    machine_deployments: list[Json] | None
    machine_sets: list[Json] | None
    slices: list[PackedSlice] | None
    partitioned_pods: list[Json] | None = None
    namespace: str = SYSTEM_NAMESPACE
    refused: dict[str, ApiError] = field(default_factory=dict)


async def read_cluster_facts(api: KubeClient) -> ClusterFacts:
    """Read all facts.

    Raises:
        ApiError: Not even the version can be read.
    """
    version = await api.get("/version")
    refused: dict[str, ApiError] = {}

    async def read_part(name: str, request: Awaitable[Any]) -> tuple[str, Any]:
        try:
            return name, await request
        except ApiError as error:
            refused[name] = error
            return name, None

    mutating = await read_part("mutating", api.get(WEBHOOKS_PATH))
    namespace = namespace_of_service(mutating[1])
    core, deployments = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}/deployments"
    metrics = await read_part("metrics", _read_text(api, "/metrics"))  # before the dry-run pod, which may count there
    parts = {
        "validating": api.get(VALIDATING_PATH),
        "backstop": api.get(f"{_ADMISSION}/validatingadmissionpolicybindings/{APP_NAME}-pods"),
        "deployment": api.get(f"{deployments}/{APP_NAME}"),
        "secret": api.get(f"{core}/secrets/{APP_NAME}-tls"),
        "settings": api.get(f"{core}/configmaps/{APP_NAME}-policies"),
        "client_ca": api.get(f"{core}/configmaps/{APP_NAME}-client-ca"),
        "authentication": api.get("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"),
        "ready": _read_status(api, core, APP_NAME),
        "answer": probe_webhooks(api),
        "policies": list_all(api, f"{GROUP_PATH}/gpupolicies"),
        "exceptions": list_all(api, f"{GROUP_PATH}/namespaces/{namespace}/gpupolicyexceptions"),
        "nodes": list_all(api, "/api/v1/nodes"),
        "limit_ranges": list_all(api, "/api/v1/limitranges"),
        "quotas": list_all(api, "/api/v1/resourcequotas"),
        "device_classes": list_all(api, "/apis/resource.k8s.io/v1/deviceclasses"),
        "extender": api.get(f"{deployments}/{EXTENDER_NAME}"),
        "extender_ready": _read_status(api, core, EXTENDER_NAME),
        "scheduler": _read_scheduler_configuration(api, core, deployments),
        "waiting": list_all(api, "/api/v1/pods", {"fieldSelector": "status.phase=Pending"}),
        "agents": list_all(api, f"{GROUP_PATH}/gpunodes"),
        "leases": list_all(api, f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases"),
        "workloads": list_workloads(api),
        "queued_pods": list_all(api, "/api/v1/pods", {"labelSelector": POD_SET_LABEL}),
        "overlays": list_all(api, f"/apis/{NODE_OVERLAY_API_VERSION}/nodeoverlays"),
        "node_pools": list_all(api, f"/apis/{NODE_POOL_API_VERSION}/nodepools"),
        "machine_deployments": list_all(api, f"/apis/{MACHINE_API_VERSION}/machinedeployments"),
        "slices": _read_slices(api),
        "machine_sets": list_all(api, f"/apis/{MACHINE_API_VERSION}/machinesets"),
    }
    facts = dict(await asyncio.gather(*(read_part(name, request) for name, request in parts.items())))
    facts |= [mutating, metrics, await read_part("partitioned_pods", _read_partitioned_pods(api, facts["nodes"] or ()))]
    return ClusterFacts(version=version, namespace=namespace, refused=refused, **facts)


def slices_of_node(node: Json) -> set[str]:
    """Return the resource names of the MIG slices that a node advertises."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name for name, amount in allocatable.items() if name.startswith(MIG_PREFIX) and amount != "0"}


async def list_workloads(api: KubeClient) -> list[Json]:
    """List the Workloads of Kueue, in the older version of its API if it has no newer one."""
    try:
        return await list_all(api, f"/apis/{KUEUE_API_VERSION}/workloads")
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return await list_all(api, f"/apis/{OLDER_KUEUE_API_VERSION}/workloads")


async def _read_partitioned_pods(api: KubeClient, nodes: Iterable[Json]) -> list[Json] | None:
    """Read the pods of the nodes with MIG slices from the API server's cache; None if there are too many such nodes."""
    names = [node["metadata"]["name"] for node in nodes if slices_of_node(node)]
    if len(names) > MAX_PARTITIONED_NODES:
        return None
    selectors = ({"fieldSelector": f"spec.nodeName={name}", "resourceVersion": "0"} for name in names)
    pages = await asyncio.gather(*(list_all(api, "/api/v1/pods", each) for each in selectors))
    return [pod for page in pages for pod in page]


async def _read_scheduler_configuration(api: KubeClient, core: str, deployments: str) -> str:
    """Read the configuration of the second scheduler from the ConfigMap that its Deployment mounts."""
    deployment = await api.get(f"{deployments}/{SECOND_SCHEDULER_NAME}")
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    maps = [await api.get(f"{core}/configmaps/{name}") for name in names]
    return "\n---\n".join(text for found in maps for text in (found.get("data") or {}).values())


async def _read_slices(api: KubeClient) -> list[PackedSlice]:
    """Read the ResourceSlices page by page; slices of equal cards share their content."""
    packer = SlicePacker()
    decoder: ResourceDecoder[ResourceSlice] = ResourceDecoder(f"GET {RESOURCE_SLICES.path}", ResourceSlice)
    found: list[PackedSlice] = []
    params = {"limit": PAGE_SIZE}
    while True:
        page = decoder.decode_page(await api.get_bytes(RESOURCE_SLICES.path, params))
        found += map(packer.pack, page.items)
        if not page.continue_token:
            return found
        params = {**params, "continue": page.continue_token}


async def list_all(api: KubeClient, path: str, selectors: Mapping[str, str] = NO_PARAMS) -> list[Json]:
    """List all items of a collection, page by page.

    Raises:
        ApiError: The API server rejects the request, or does not answer.
    """
    items: list[Json] = []
    params = {**selectors, "limit": PAGE_SIZE}
    while True:
        page = await api.get(path, params)
        items += page["items"]
        more = page["metadata"].get("continue")
        if not more:
            return items
        params = {**params, "continue": more}


async def _read_status(api: KubeClient, core: str, service: str) -> str:
    return await _read_text(api, f"{core}/services/https:{service}:https/proxy/readyz", {"verbose": ""})


async def _read_text(api: KubeClient, path: str, params: Mapping[str, str] = NO_PARAMS) -> str:
    return (await api.get_bytes(path, params)).decode(errors="replace")


def runs_outside_cluster(facts: ClusterFacts) -> bool:
    """Return True if there is no Deployment, so that a server can only run outside the cluster."""
    return facts.deployment is None and facts.refused["deployment"].status == HTTPStatus.NOT_FOUND


def repair_command(facts: ClusterFacts) -> str:
    """Return the command that restores missing objects, depending on where the webhook runs."""
    configurations = (facts.mutating or {}, facts.validating or {})
    webhooks = [webhook for one in configurations for webhook in one.get("webhooks") or ()]
    if any("url" in webhook["clientConfig"] for webhook in webhooks):
        return OUTSIDE_COMMAND
    if not runs_outside_cluster(facts):
        return "rightslice install"
    return f"rightslice install, or {HELM_COMMAND}; for a server outside the cluster: {OUTSIDE_COMMAND}"


def unread_part_result(facts: ClusterFacts, name: str, absent: str, advice: str) -> DiagnosticResult:
    """Return the result for a part that could not be read: missing, or not permitted."""
    error = facts.refused[name]
    if error.status == HTTPStatus.NOT_FOUND:
        return DiagnosticResult.fail(absent, advice)
    return DiagnosticResult.skip(f"{name} cannot be read", error.message)


BOTH_ANSWERED = f"{PROBE_ANSWER}: validate and mutate"

UNANSWERED = "the pod was admitted without an answer from the webhooks"

_WEBHOOK_NAME_END = '.rightslice.dev"'
"""End of the names of Rightslice's webhooks in messages of the API server."""

_PROBE_POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "rightslice-probe", "namespace": "default", "annotations": {PROBE_ANNOTATION: "who answers?"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "rightslice/probe",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {
                    "requests": {"cpu": "100m", "memory": "128Mi"},
                    "limits": {"cpu": "100m", "memory": "128Mi"},
                },
            }
        ],
    },
}
"""A pod that complies with the restricted Pod Security profile and common LimitRanges. It is never stored.

It is created in `default`, because the webhooks exclude Rightslice's own namespace.
"""


async def probe_webhooks(api: KubeClient) -> str:
    """Return the answer to the dry-run pod: that of the webhooks, or why they did not answer.

    Raises:
        ApiUnreachable: The API server does not answer.
    """
    try:
        await api.create("/api/v1/namespaces/default/pods", _PROBE_POD, {"dryRun": "All"})
    except ApiUnreachable:
        raise
    except ApiError as error:
        return error.message
    return UNANSWERED


def is_rejected_by_others(answer: str) -> bool:
    """Return True if something else rejected the pod (RBAC, a LimitRange, a policy), before the webhooks.

    >>> is_rejected_by_others('pods "rightslice-probe" is forbidden: exceeded quota: pods')
    True
    >>> is_rejected_by_others('failed calling webhook "validate.rightslice.dev": connection refused')
    False
    """
    return answer != UNANSWERED and PROBE_ANSWER not in answer and _WEBHOOK_NAME_END not in answer


async def all_have_ca_bundle(api: KubeClient) -> bool:
    """Return True if every webhook has a caBundle; without it the webhooks are not called."""
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        configuration = await api.get(f"{_ADMISSION}/{plural}/{APP_NAME}")
        if not all(webhook["clientConfig"].get("caBundle") for webhook in configuration["webhooks"]):
            return False
    return True


MODE_VARIABLE = "RIGHTSLICE_MODE"
CONTAINER = "webhook"
HELM_RELEASE_ANNOTATION = "meta.helm.sh/release-name"


class CurrentInstall(NamedTuple):
    """Settings of an installation; "" if unset.

    Attributes:
        external_certificate: True if the certificate comes from files, for example of cert-manager.
        helm_release: Name of the Helm release that the Deployment belongs to.
        namespace: Where it is installed.
        gpu_resources: Further resource names by which the webhooks get pods; None if unknown.
    """

    mode: str = ""
    image: str = ""
    external_certificate: bool = False
    helm_release: str = ""
    namespace: str = SYSTEM_NAMESPACE
    gpu_resources: tuple[str, ...] | None = None


async def read_current_install(api: KubeClient) -> CurrentInstall:
    """Read the settings; those of the container are empty without a Deployment.

    Raises:
        ApiError: The API server rejects the request, or does not answer.
    """
    namespace = await find_installed_namespace(api)
    deployment = await find_object(api, f"/apis/apps/v1/namespaces/{namespace}/deployments/{APP_NAME}")
    current = CurrentInstall() if deployment is None else parse_deployment(deployment)
    validating = await find_object(api, VALIDATING_PATH)
    added = read_sent_resources(validating).added if validating is not None else ()
    return current._replace(namespace=namespace, gpu_resources=added)


def parse_deployment(deployment: Mapping[str, Any]) -> CurrentInstall:
    """Return the settings of the webhook's container; other containers are ignored."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    container: Mapping[str, Any] = next((one for one in containers if one["name"] == CONTAINER), {})
    variables = {variable["name"]: str(variable.get("value") or "") for variable in container.get("env") or ()}
    external = any(str(argument).startswith("--tls-cert") for argument in container.get("args") or ())
    annotations = deployment.get("metadata", {}).get("annotations") or {}
    release = str(annotations.get(HELM_RELEASE_ANNOTATION) or "")
    return CurrentInstall(variables.get(MODE_VARIABLE, ""), str(container.get("image") or ""), external, release)
