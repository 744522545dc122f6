"""Stores policy reports in a cluster with server-side apply, and deletes our reports that are out of date.

The results of a report are one list, which is replaced as a whole, so running it again changes only timestamps.
Objects of other tools with the same name are left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus

from webhook.errors import ApiError, RightsliceError
from webhook.kube.api import KubeClient
from webhook.manifests.objects import api_path, display_name
from webhook.report.policy_reports import KINDS, NAME, OWNER_LABELS, ReportApi
from webhook.report.text import sanitize
from webhook.well_known import Json

MessageWriter = Callable[[str], None]

REPORT_MANAGER = "rightslice-audit"
REPORTS_PER_PAGE = 40
"""Reports to list at once; each may be a megabyte."""

FOREIGN_REPORT_HINT = "To store the results there, delete or rename it, and run this again"


async def publish_reports(
    api: KubeClient, reports: Sequence[Json], served: Iterable[ReportApi], log: MessageWriter, *, dry_run: bool = False
) -> bool:
    """Store these reports, and delete all others of ours.

    Args:
        reports: The reports of a whole cluster.
        served: The report APIs of the cluster; outdated reports are deleted in each of them.
        log: Called with a line for each object that was written, deleted or left alone.
        dry_run: The API server validates and stores nothing.

    Returns:
        False if an object of another tool has the name of one of these.

    Raises:
        ApiError: the API server rejects a request, or does not answer. It is safe to call this again.
    """
    params = {"dryRun": "All"} if dry_run else {}
    would = "would be " if dry_run else ""
    existing = {api_path(one): one for each in served async for one in _list_reports(api, each)}
    complete = True
    for one in reports:
        try:
            written = await _apply_report(api, one, existing.get(api_path(one)), params)
        except _ForeignReportError as error:
            complete = False
            log(f"{display_name(one)} belongs to another tool and is not changed: {error}. {FOREIGN_REPORT_HINT}")
            continue
        counts = one["summary"]
        text = f"{would}written: {counts['fail']} fail, {counts['warn']} warn"
        log(f"{display_name(one)} {text if written else 'is skipped: its namespace is being deleted'}")
    current = {api_path(one) for one in reports}
    for path, one in existing.items():
        if path not in current and not _foreign_reason(one):
            try:
                await api.delete(path, params)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
            log(f"{display_name(one)} {would}deleted: out of date")
    return complete


class _ForeignReportError(RightsliceError):
    """An object with our name belongs to another tool; the message says why."""


def _foreign_reason(found: Json) -> str:
    """Return why an object belongs to another tool; "" if it is ours."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    for key, value in OWNER_LABELS.items():
        if labels.get(key) != value:
            return f"its label {key} must be {value}, found {sanitize(str(labels.get(key, '(none)')))}"
    managers = {each.get("manager") for each in metadata.get("managedFields") or ()}
    return "" if REPORT_MANAGER in managers else f"the field manager {REPORT_MANAGER} owns no field of it"


async def _apply_report(api: KubeClient, one: Json, found: Json | None, params: dict[str, str]) -> bool:
    """Apply a report; return False if its namespace is gone or being deleted.

    Conflicts are forced only for an object that is known to be ours: another tool may just have created one.
    """
    if found is not None and (reason := _foreign_reason(found)):
        raise _ForeignReportError(reason)
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


async def _list_reports(api: KubeClient, report_api: ReportApi) -> AsyncIterator[Json]:
    """Yield the objects with our name, without their results."""
    kind, plural = KINDS[report_api]
    selector = {"fieldSelector": f"metadata.name={NAME}", "limit": str(REPORTS_PER_PAGE)}
    more: dict[str, str] = {}
    while True:
        page = await api.get(f"/apis/{report_api.value}/{plural}", {**selector, **more})
        for item in page["items"]:
            yield {"apiVersion": report_api.value, "kind": kind, "metadata": item["metadata"]}
        token = page["metadata"].get("continue", "")
        if not token:
            return
        more = {"continue": token}
