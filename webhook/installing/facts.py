"""What `doctor` looks at: read once over the API server, each part by itself, so that one refusal hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from webhook.errors import ApiError
from webhook.installing.applying import who_answers
from webhook.kube.api import Api
from webhook.manifests.hooks import NAME, NAMESPACE
from webhook.manifests.objects import DEPLOYMENT

Json = dict[str, Any]

PAGE = "500"
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_OURS = "/apis/rightslice.dev/v1alpha1"
_IN_SPACE = f"/api/v1/namespaces/{NAMESPACE}"
_SERVICE = f"{_IN_SPACE}/services/https:{NAME}:https/proxy"


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
    }
    found = await asyncio.gather(*(part(name, asked) for name, asked in parts.items()))
    return Facts(version=version, refused=refused, **dict(found))


async def everything(api: Api, path: str) -> list[Json]:
    """All items of a collection, page by page.

    Raises:
        ApiError: the API server does not let us, or does not answer.
    """
    items: list[Json] = []
    params = {"limit": PAGE}
    while True:
        page = await api.get(path, params)
        items += page["items"]
        more = page["metadata"].get("continue")
        if not more:
            return items
        params = {"limit": PAGE, "continue": more}


async def _text(api: Api, path: str, params: dict[str, str] | None = None) -> str:
    return (await api.read(path, params or {})).decode(errors="replace")
