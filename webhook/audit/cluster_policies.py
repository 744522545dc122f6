"""The policies of a live cluster, read once: objects, and the files of the ConfigMap that the webhook mounts."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from webhook.documents.reader import is_document_file
from webhook.errors import ApiError
from webhook.kube.api import KubeClient

CONFIG_MAP = "rightslice-policies"

PolicyTexts = tuple[tuple[str, str], ...]
"""What to call each text in messages, and the text."""


class PolicySources(NamedTuple):
    """Where the policies of a cluster are written.

    Attributes:
        files: Those of the ConfigMap.
        objects: GPUPolicies, and the GPUPolicyExceptions of the admins' namespace.
        unread: Why the ConfigMap could not be read; "" where it was, or there is none.
        halted: What the objects are called whose rollout was halted.
        ready: What those are called of which a server says that it uses them.
    """

    files: PolicyTexts
    objects: PolicyTexts
    unread_reason: str = ""
    halted: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()


async def read_policy_config_map(api: KubeClient, namespace: str) -> tuple[PolicyTexts, str]:
    """The files of the ConfigMap, and why it could not be read.

    Raises:
        ApiError: the server does not answer.
    """
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}")
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return (), ""
        if error.status == HTTPStatus.FORBIDDEN:
            return (), str(error)
        raise
    return tuple(sorted(_document_keys(found.get("data") or {}, f"configmap/{namespace}/{CONFIG_MAP}"))), ""


def _document_keys(data: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """The keys that a mounted folder would be read for."""
    return [(f"{where}/{key}", text) for key, text in data.items() if is_document_file([key])]
