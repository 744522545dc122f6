"""Writes report objects into a cluster, and takes out those of ours that have nothing left to say.

Server-side apply makes what is there what the audit found: results are one list, which is replaced as a whole. Running
it twice changes nothing but the moment of each result. An object of that name which another tool keeps is left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from webhook.errors import ApiError, RightsliceError
from webhook.kube.api import KubeClient
from webhook.manifests.objects import api_path, display_name
from webhook.report.policy_reports import KINDS, NAME, OWNER_LABELS, ReportApi
from webhook.report.text import sanitize

Json = dict[str, Any]
MessageWriter = Callable[[str], None]

REPORT_MANAGER = "rightslice-audit"
REPORTS_PER_PAGE = 40
"""Report objects that are listed at once: each may be a megabyte."""

FOREIGN_REPORT_HINT = "To have what was found there, delete it or give it another name, and run this again"


async def publish_reports(
    api: KubeClient, reports: Sequence[Json], served: Iterable[ReportApi], say: MessageWriter, *, dry_run: bool = False
) -> bool:
    """Make the report objects of ours in a cluster these, and no others.

    Args:
        reports: What `build_policy_reports` made of a whole cluster.
        served: The APIs for reports that the cluster has; in each of them what is stale is removed.
        say: Is told each object that was written, removed or left alone.
        dry_run: The API server checks everything, and stores nothing.

    Returns:
        False where an object of another tool is in the place of one of these.

    Raises:
        ApiError: the API server refuses something, or does not answer. Calling again goes on where it was.
    """
    params = {"dryRun": "All"} if dry_run else {}
    would = "would be " if dry_run else ""
    there = {api_path(one): one for each in served async for one in _list_reports(api, each)}
    others = False
    for one in reports:
        try:
            written = await _apply_report(api, one, there.get(api_path(one)), params)
        except _ForeignReportError as error:
            others = True
            say(f"{display_name(one)} is another tool's and is left alone: {error}. {FOREIGN_REPORT_HINT}")
            continue
        counts = one["summary"]
        says = f"{would}written: {counts['fail']} fail, {counts['warn']} warn"
        say(f"{display_name(one)} {says if written else 'is left out: its namespace is going'}")
    current = {api_path(one) for one in reports}
    for path, one in there.items():
        if path not in current and not _foreign_reason(one):
            await _delete_report(api, one, params)
            say(f"{display_name(one)} {would}removed: out of date")
    return not others


class _ForeignReportError(RightsliceError):
    """An object of our name is not ours; says by what that is seen."""


def _foreign_reason(found: Json) -> str:
    """By what an object is seen to be another tool's; "" where it is ours."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    for key, value in OWNER_LABELS.items():
        if labels.get(key) != value:
            return f"its label {key} must be {value}, found {sanitize(str(labels.get(key, '(none)')))}"
    managers = {each.get("manager") for each in metadata.get("managedFields") or ()}
    return "" if REPORT_MANAGER in managers else f"the field manager {REPORT_MANAGER} has no part in it"


async def _apply_report(api: KubeClient, one: Json, found: Json | None, params: dict[str, str]) -> bool:
    """Apply an object; False where its namespace is not there any more, or soon will not be.

    Only what is known to be ours is taken from whoever has changed it: another tool may just have made one.
    """
    if found is not None and (why := _foreign_reason(found)):
        raise _ForeignReportError(why)
    force = {"force": "true"} if found is not None else {}
    try:
        await api.patch(api_path(one), one, "apply", {**params, "fieldManager": REPORT_MANAGER, **force})
    except ApiError as error:
        if error.status == HTTPStatus.CONFLICT and not force:
            raise _ForeignReportError(error.message) from error
        if error.status == HTTPStatus.NOT_FOUND or "is being terminated" in error.message:
            return False
        raise
    return True


async def _delete_report(api: KubeClient, one: Json, params: dict[str, str]) -> None:
    try:
        await api.delete(api_path(one), params)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


async def _list_reports(api: KubeClient, report_api: ReportApi) -> AsyncIterator[Json]:
    """Of each object of our name what names it and tells whose it is, without its results."""
    kind, plural = KINDS[report_api]
    chosen = {"fieldSelector": f"metadata.name={NAME}", "limit": str(REPORTS_PER_PAGE)}
    more: dict[str, str] = {}
    while True:
        page = await api.get(f"/apis/{report_api.value}/{plural}", {**chosen, **more})
        for item in page["items"]:
            yield {"apiVersion": report_api.value, "kind": kind, "metadata": item["metadata"]}
        token = page["metadata"].get("continue", "")
        if not token:
            return
        more = {"continue": token}
