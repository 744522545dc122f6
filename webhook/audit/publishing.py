"""Writes report objects into a cluster, and takes out those of ours that have nothing left to say.

Server-side apply makes what is there what the audit found: results are one list, which is replaced as a whole. Running
it twice changes nothing but the moment of each result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.manifests.objects import named, path_of
from webhook.report.policyreports import KINDS, NAME, OURS, ReportApi

Json = dict[str, Any]
Say = Callable[[str], None]

MANAGER = "rightslice-audit"
PAGE = 40
"""Report objects that are listed at once: each may be a megabyte."""


async def publish(
    api: Api, reports: Sequence[Json], served: Iterable[ReportApi], say: Say, *, dry_run: bool = False
) -> None:
    """Make the report objects of ours in a cluster these, and no others.

    Args:
        reports: What `policy_reports` made of a whole cluster.
        served: The APIs for reports that the cluster has; in each of them what is stale is removed.
        say: Is told each object that was written or removed.
        dry_run: The API server checks everything, and stores nothing.

    Raises:
        ApiError: the API server refuses something, or does not answer. Calling again goes on where it was.
    """
    params = {"dryRun": "All"} if dry_run else {}
    would = "would be " if dry_run else ""
    for one in reports:
        if await _written(api, one, params):
            counts = one["summary"]
            say(f"{named(one)} {would}written: {counts['fail']} fail, {counts['warn']} warn")
        else:
            say(f"{named(one)} is left out: its namespace is going")
    current = {path_of(one) for one in reports}
    stale = [one for each in served async for one in _ours(api, each) if path_of(one) not in current]
    for one in stale:
        await _removed(api, one, params)
        say(f"{named(one)} {would}removed: out of date")


async def _written(api: Api, one: Json, params: dict[str, str]) -> bool:
    """Apply an object; False where its namespace is not there any more, or soon will not be."""
    try:
        await api.patch(path_of(one), one, "apply", {**params, "fieldManager": MANAGER, "force": "true"})
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND or "is being terminated" in error.message:
            return False
        raise
    return True


async def _removed(api: Api, one: Json, params: dict[str, str]) -> None:
    try:
        await api.delete(path_of(one), params)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


async def _ours(api: Api, report_api: ReportApi) -> AsyncIterator[Json]:
    """What of an object is needed to name it, for each that we ever wrote."""
    kind, plural = KINDS[report_api]
    labels = ",".join(f"{key}={value}" for key, value in OURS.items())
    chosen = {"labelSelector": labels, "fieldSelector": f"metadata.name={NAME}", "limit": str(PAGE)}
    more: dict[str, str] = {}
    while True:
        page = await api.get(f"/apis/{report_api.value}/{plural}", {**chosen, **more})
        for item in page["items"]:
            where = {"name": NAME, "namespace": item["metadata"]["namespace"]}
            yield {"apiVersion": report_api.value, "kind": kind, "metadata": where}
        token = page["metadata"].get("continue", "")
        if not token:
            return
        more = {"continue": token}
