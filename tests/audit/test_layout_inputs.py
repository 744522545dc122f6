"""What a plan of layouts reads besides pods: PodDisruptionBudgets that may not be listed, and links of cards."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from tests.placement.clusters import gpu_node_report, with_gpu_conditions
from webhook.audit.cluster_reader import ClusterReader
from webhook.audit.object_files import SourceObject
from webhook.errors import ApiError
from webhook.model.gpu_node import GPUNode
from webhook.placement.devices import reported_nvlinks


class AnsweringReader(ClusterReader):
    """A reader of a cluster that answers each list with a status."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status

    def _list_objects(self, kind: str, path: str, params: Any = None) -> Iterator[SourceObject]:
        if self.status is not HTTPStatus.OK:
            raise ApiError(f"GET {path}", self.status, self.status.phrase, "")
        yield from ()


ANSWERS: dict[str, tuple[HTTPStatus, list[SourceObject] | None]] = {
    "none exists": (HTTPStatus.OK, []),
    "no such resource": (HTTPStatus.NOT_FOUND, []),
    "not permitted": (HTTPStatus.FORBIDDEN, None),
}


@pytest.mark.parametrize(("status", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
def test_budgets_that_may_not_be_listed_are_unknown(status: HTTPStatus, expected: list[SourceObject] | None) -> None:
    assert AnsweringReader(status).disruption_budgets() == expected


def test_another_error_is_not_hidden() -> None:
    with pytest.raises(ApiError):
        AnsweringReader(HTTPStatus.INTERNAL_SERVER_ERROR).disruption_budgets()


ALL_LINKED = {(one, other): 12 for other in range(4) for one in range(other)}
REPORTS: dict[str, tuple[Any, int | None]] = {
    "NVLink between all": (gpu_node_report("n", 4, ALL_LINKED), 12),
    "two pairs of four": (gpu_node_report("n", 4, {(0, 1): 12, (2, 3): 12}), 4),
    "none": (gpu_node_report("n", 4, {}), 0),
    "one has failed links": (with_gpu_conditions(gpu_node_report("n", 4, ALL_LINKED), 0, nvlinkDegraded=True), 6),
    "one in MIG mode does not count": (gpu_node_report("n", 4, ALL_LINKED, mig_instances={0: []}), 12),
    "all but one in MIG mode": (gpu_node_report("n", 4, ALL_LINKED, mig_instances={0: [], 1: [], 2: []}), None),
    "an invalid report": (gpu_node_report("n", 0, {}), None),
}


@pytest.mark.parametrize(("report", "expected"), REPORTS.values(), ids=REPORTS.keys())
def test_links_that_an_agent_reports(report: Any, expected: int | None) -> None:
    assert reported_nvlinks(msgspec.convert(report, GPUNode)) == expected
