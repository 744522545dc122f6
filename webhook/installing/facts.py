"""What `doctor` looks at: read once over the API server, each part by itself, so that one refusal hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from webhook.errors import ApiError
from webhook.installing.probe import who_answers
from webhook.kube.api import Api
from webhook.manifests.hooks import NAME, NAMESPACE
from webhook.manifests.objects import DEPLOYMENT
from webhook.manifests.scheduling import EXTENDER, SCHEDULER

Json = dict[str, Any]

PAGE = "500"
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_OURS = "/apis/rightslice.dev/v1alpha1"
_IN_SPACE = f"/api/v1/namespaces/{NAMESPACE}"
_SERVICE = f"{_IN_SPACE}/services/https:{NAME}:https/proxy"
_EXTENDER = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{EXTENDER}"
_SCHEDULER = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"

NOT_FOUND = 404
INSIDE = "rightslice install"
OUTSIDE = "kubectl apply --server-side -k manifests/overlays/out-of-cluster (docs/install.md#out-of-cluster)"

NO_CHOICE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Facts:
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


async def read_facts(api: Api) -> Facts:
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
        "mutating": api.get(f"{_ADMISSION}/mutatingwebhookconfigurations/{NAME}"),
        "validating": api.get(f"{_ADMISSION}/validatingwebhookconfigurations/{NAME}"),
        "backstop": api.get(f"{_ADMISSION}/validatingadmissionpolicybindings/{NAME}-pods"),
        "deployment": api.get(DEPLOYMENT),
        "secret": api.get(f"{_IN_SPACE}/secrets/{NAME}-tls"),
        "settings": api.get(f"{_IN_SPACE}/configmaps/{NAME}-policies"),
        "ready": _text(api, f"{_SERVICE}/readyz", {"verbose": ""}),
        "answer": who_answers(api),
        "metrics": _text(api, "/metrics"),
        "policies": everything(api, f"{_OURS}/gpupolicies"),
        "exceptions": everything(api, f"{_OURS}/namespaces/{NAMESPACE}/gpupolicyexceptions"),
        "nodes": everything(api, "/api/v1/nodes"),
        "limit_ranges": everything(api, "/api/v1/limitranges"),
        "quotas": everything(api, "/api/v1/resourcequotas"),
        "device_classes": everything(api, "/apis/resource.k8s.io/v1/deviceclasses"),
        "extender": api.get(_EXTENDER),
        "extender_ready": _text(api, f"{_IN_SPACE}/services/https:{EXTENDER}:https/proxy/readyz", {"verbose": ""}),
        "scheduler": _configuration(api),
        "waiting": everything(api, "/api/v1/pods", {"fieldSelector": "status.phase=Pending"}),
        "agents": everything(api, f"{_OURS}/gpunodes"),
        "leases": everything(api, f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"),
    }
    found = await asyncio.gather(*(part(name, asked) for name, asked in parts.items()))
    return Facts(version=version, refused=refused, **dict(found))


async def _configuration(api: Api) -> str:
    """What the second scheduler is told, from the ConfigMap that its Deployment mounts."""
    deployment = await api.get(_SCHEDULER)
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    maps = [await api.get(f"{_IN_SPACE}/configmaps/{name}") for name in names]
    return "\n---\n".join(text for found in maps for text in (found.get("data") or {}).values())


async def everything(api: Api, path: str, chosen: Mapping[str, str] = NO_CHOICE) -> list[Json]:
    """All items of a collection, page by page.

    Raises:
        ApiError: the API server does not let us, or does not answer.
    """
    items: list[Json] = []
    params = {**chosen, "limit": PAGE}
    while True:
        page = await api.get(path, params)
        items += page["items"]
        more = page["metadata"].get("continue")
        if not more:
            return items
        params = {**chosen, "limit": PAGE, "continue": more}


async def _text(api: Api, path: str, params: dict[str, str] | None = None) -> str:
    return (await api.read(path, params or {})).decode(errors="replace")


def is_outside(facts: Facts) -> bool:
    """Does the server, if there is one, run outside the cluster?"""
    return facts.deployment is None and facts.refused["deployment"].status == NOT_FOUND


def putting_right(facts: Facts) -> str:
    """The command that puts back what is missing: an installation in the cluster and one outside it have their own."""
    if any("url" in hook["clientConfig"] for one in (facts.mutating, facts.validating) for hook in _hooks(one)):
        return OUTSIDE
    return f"{INSIDE}; for a server outside the cluster: {OUTSIDE}" if is_outside(facts) else INSIDE


def _hooks(configuration: Json | None) -> list[Json]:
    return (configuration or {}).get("webhooks") or []
