"""What `doctor` looks at: read once over the API server, each part by itself, so that one refusal hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from webhook.errors import ApiError, shorten_text
from webhook.installing.probe import probe_webhooks
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH
from webhook.manifests.scheduler_config import EXTENDER_NAME, SECOND_SCHEDULER_NAME
from webhook.well_known import APP_NAME, GROUP_PATH, SYSTEM_NAMESPACE


class CheckState(StrEnum):
    """What a line says. FAIL and WARN are something to act on."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class DiagnosticResult(NamedTuple):
    """One line: what was looked at, and what to know or do."""

    state: CheckState
    summary: str
    advice: str = ""


Json = dict[str, Any]

PAGE_SIZE = "500"
FAIL_OPEN_METRIC = "apiserver_admission_webhook_fail_open_count"

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_IN_SPACE = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
_SERVICE = f"{_IN_SPACE}/services/https:{APP_NAME}:https/proxy"
_EXTENDER = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{EXTENDER_NAME}"
_SCHEDULER = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{SECOND_SCHEDULER_NAME}"

NOT_FOUND = 404
INSTALL_COMMAND = "rightslice install"
OUTSIDE_COMMAND = "kubectl apply --server-side -k manifests/overlays/out-of-cluster (docs/install.md#out-of-cluster)"

NO_PARAMS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All of it. What could not be read is None, and `refused` says why, by the same name."""

    version: Json
    mutating: Json | None
    validating: Json | None
    backstop: Json | None
    deployment: Json | None
    secret: Json | None
    settings: Json | None
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
    refused: dict[str, ApiError] = field(default_factory=dict)


async def read_cluster_facts(api: KubeClient) -> ClusterFacts:
    """Ask the API server for everything.

    Raises:
        ApiError: it does not even tell its version.
    """
    version = await api.get("/version")
    refused: dict[str, ApiError] = {}

    async def part(name: str, asked: Awaitable[Any]) -> tuple[str, Any]:
        try:
            return name, await asked
        except ApiError as error:
            refused[name] = error
            return name, None

    parts = {
        "mutating": api.get(f"{_ADMISSION}/mutatingwebhookconfigurations/{APP_NAME}"),
        "validating": api.get(f"{_ADMISSION}/validatingwebhookconfigurations/{APP_NAME}"),
        "backstop": api.get(f"{_ADMISSION}/validatingadmissionpolicybindings/{APP_NAME}-pods"),
        "deployment": api.get(DEPLOYMENT_PATH),
        "secret": api.get(f"{_IN_SPACE}/secrets/{APP_NAME}-tls"),
        "settings": api.get(f"{_IN_SPACE}/configmaps/{APP_NAME}-policies"),
        "ready": _get_text(api, f"{_SERVICE}/readyz", {"verbose": ""}),
        "answer": probe_webhooks(api),
        "metrics": _get_text(api, "/metrics"),
        "policies": list_all(api, f"{GROUP_PATH}/gpupolicies"),
        "exceptions": list_all(api, f"{GROUP_PATH}/namespaces/{SYSTEM_NAMESPACE}/gpupolicyexceptions"),
        "nodes": list_all(api, "/api/v1/nodes"),
        "limit_ranges": list_all(api, "/api/v1/limitranges"),
        "quotas": list_all(api, "/api/v1/resourcequotas"),
        "device_classes": list_all(api, "/apis/resource.k8s.io/v1/deviceclasses"),
        "extender": api.get(_EXTENDER),
        "extender_ready": _get_text(
            api, f"{_IN_SPACE}/services/https:{EXTENDER_NAME}:https/proxy/readyz", {"verbose": ""}
        ),
        "scheduler": _read_scheduler_configuration(api),
        "waiting": list_all(api, "/api/v1/pods", {"fieldSelector": "status.phase=Pending"}),
        "agents": list_all(api, f"{GROUP_PATH}/gpunodes"),
        "leases": list_all(api, f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"),
    }
    found = await asyncio.gather(*(part(name, asked) for name, asked in parts.items()))
    return ClusterFacts(version=version, refused=refused, **dict(found))


async def _read_scheduler_configuration(api: KubeClient) -> str:
    """What the second scheduler is told, from the ConfigMap that its Deployment mounts."""
    deployment = await api.get(_SCHEDULER)
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    maps = [await api.get(f"{_IN_SPACE}/configmaps/{name}") for name in names]
    return "\n---\n".join(text for found in maps for text in (found.get("data") or {}).values())


async def list_all(api: KubeClient, path: str, chosen: Mapping[str, str] = NO_PARAMS) -> list[Json]:
    """All items of a collection, page by page.

    Raises:
        ApiError: the API server does not let us, or does not answer.
    """
    items: list[Json] = []
    params = {**chosen, "limit": PAGE_SIZE}
    while True:
        page = await api.get(path, params)
        items += page["items"]
        more = page["metadata"].get("continue")
        if not more:
            return items
        params = {**chosen, "limit": PAGE_SIZE, "continue": more}


async def _get_text(api: KubeClient, path: str, params: dict[str, str] | None = None) -> str:
    return (await api.get_bytes(path, params or {})).decode(errors="replace")


def runs_outside_cluster(facts: ClusterFacts) -> bool:
    """Does the server, if there is one, run outside the cluster?"""
    return facts.deployment is None and facts.refused["deployment"].status == NOT_FOUND


def repair_command(facts: ClusterFacts) -> str:
    """The command that puts back what is missing: an installation in the cluster and one outside it have their own."""
    if any("url" in hook["clientConfig"] for one in (facts.mutating, facts.validating) for hook in _webhooks_of(one)):
        return OUTSIDE_COMMAND
    return (
        f"{INSTALL_COMMAND}; for a server outside the cluster: {OUTSIDE_COMMAND}"
        if runs_outside_cluster(facts)
        else INSTALL_COMMAND
    )


def _webhooks_of(configuration: Json | None) -> list[Json]:
    return (configuration or {}).get("webhooks") or []


def unread_part_result(facts: ClusterFacts, name: str, absent: str, advice: str) -> DiagnosticResult:
    """What to say of a part that could not be read: it is not there, or we may not see it."""
    error = facts.refused[name]
    if error.status == 404:
        return DiagnosticResult(CheckState.FAIL, absent, advice)
    return DiagnosticResult(CheckState.SKIP, f"{name} cannot be read", shorten_text(error.message, 160))
