"""The policies of a live cluster, read once: objects, and the files of the ConfigMap that the webhook mounts."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from webhook.documents.names import is_document
from webhook.errors import ApiError
from webhook.kube.api import Api

CONFIG_MAP = "rightslice-policies"

Texts = tuple[tuple[str, str], ...]
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

    files: Texts
    objects: Texts
    unread: str = ""
    halted: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()


async def policy_files_of(api: Api, namespace: str) -> tuple[Texts, str]:
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
    return tuple(sorted(_files(found.get("data") or {}, f"configmap/{namespace}/{CONFIG_MAP}"))), ""


def _files(data: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """The keys that a mounted folder would be read for."""
    return [(f"{where}/{key}", text) for key, text in data.items() if is_document([key])]
