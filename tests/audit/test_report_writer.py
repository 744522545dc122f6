"""Ownership of policy reports, on a scripted API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from tests.report.audit_samples import DENIED, NOW, audited_pod, rows_of
from webhook.audit.report_writer import REPORT_MANAGER, publish_reports
from webhook.report.policy_reports import NAME, OWNER_LABELS, ReportApi, build_policy_reports

API = ReportApi.OPENREPORTS


def stored_report(labels: dict[str, str] | None, manager: str = REPORT_MANAGER) -> dict[str, Any]:
    """Return a stored report with our name."""
    fields = [{"manager": manager, "operation": "Apply"}]
    return {"metadata": {"name": NAME, "namespace": "a", "labels": labels, "managedFields": fields}}


def list_answer(*items: dict[str, Any]) -> Answer:
    return json_answer({"metadata": {}, "items": items})


def publish(folder: Path, *answers: Answer, empty: bool = False) -> tuple[bool, list[str], list[str]]:
    """Return whether all reports were written, the messages, and the requests except lists."""
    messages: list[str] = []
    found = [] if empty else [audited_pod("p", namespace="a", findings=[DENIED])]

    async def run() -> tuple[bool, list[str]]:
        async with scripted_api(folder, *answers) as (server, api):
            complete = await publish_reports(
                api, build_policy_reports(rows_of(found), NOW, API), [API], messages.append
            )
            return complete, [f"{each.method} {each.query.get('force', '')}".strip() for each in server.requests[1:]]

    complete, requests = asyncio.run(run())
    return complete, messages, requests


FOREIGN_REPORTS = {
    "another manager": stored_report({"app.kubernetes.io/managed-by": "scanner"}),
    "no label": stored_report(None),
    "our label, but not our field manager": stored_report(OWNER_LABELS, "scanner"),
}


@pytest.mark.parametrize("foreign", FOREIGN_REPORTS.values(), ids=FOREIGN_REPORTS)
def test_object_of_another_tool_is_neither_written_nor_deleted(tmp_path: Path, foreign: dict[str, Any]) -> None:
    complete, [line], requests = publish(tmp_path, list_answer(foreign))
    assert (complete, requests) == (False, [])
    assert line.startswith(f"Report a/{NAME} belongs to another tool and is not changed: ")
    assert publish(tmp_path, list_answer(foreign), empty=True) == (True, [], [])


def test_object_that_another_tool_just_created_is_left_alone(tmp_path: Path) -> None:
    conflict = error_answer(409, "Conflict", 'conflict with "scanner": .results')
    complete, [line], requests = publish(tmp_path, list_answer(), conflict)
    assert (complete, requests) == (False, ["PATCH"])
    assert 'conflict with "scanner": .results. To store the results there, ' in line


def test_our_object_is_overwritten_and_deleted(tmp_path: Path) -> None:
    assert publish(tmp_path, list_answer(stored_report(OWNER_LABELS)), json_answer({})) == (
        True,
        [f"Report a/{NAME} written: 1 fail, 0 warn"],
        ["PATCH true"],
    )
    complete, [line], requests = publish(
        tmp_path, list_answer(stored_report(OWNER_LABELS)), json_answer({}), empty=True
    )
    assert (complete, line, requests) == (True, f"Report a/{NAME} deleted: out of date", ["DELETE"])
