"""Reads an object that may not be there."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from webhook.errors import ApiError
from webhook.kube.api import KubeClient

ABSENT_STATUSES = (HTTPStatus.NOT_FOUND,)


async def find_object(api: KubeClient, path: str, absent: tuple[int, ...] = ABSENT_STATUSES) -> dict[str, Any] | None:
    """An object; None where the API server answers with one of these statuses.

    Raises:
        ApiError: it refuses otherwise, or does not answer.
    """
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status not in absent:
            raise
        return None
