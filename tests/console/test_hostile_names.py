"""Every list and page in a browser with hostile names, and with ten thousand findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest

from tests.browser.driver import BrowserProcess
from tests.browser.layout_checks import find_layout_errors_by_width
from tests.console.test_in_browser import served_console
from tests.console.test_pages import HOSTILE
from tests.report.audit_samples import DENIED
from webhook.console.reading import ClusterReading, NewestReading
from webhook.errors import SourceLocation
from webhook.report.console.findings import group_console_findings
from webhook.report.console.query import page_address, workload_address
from webhook.report.results import LocatedFinding
from webhook.report.workloads import WorkloadReport

NAMES = (*HOSTILE, "\u202e\u05d0\u05d1\u05d2" * 20, "</main></body>")
NUMBER = 10_000
STATE = "return [typeof window.attacked, document.querySelectorAll('main').length]"


def workload_with(row: WorkloadReport, name: str, texts: Iterable[str]) -> WorkloadReport:
    """Return a workload of this name, in a namespace of this name, with a finding about each text."""
    found = [
        msgspec.structs.replace(DENIED, path=("spec", each), message=each, fix=each, policy=each) for each in texts
    ]
    return msgspec.structs.replace(
        row,
        namespace=name,
        name=f"Deployment/{name}",
        outcome=name,
        findings=tuple((LocatedFinding(each, SourceLocation(name)), 1) for each in found),
        pods_by_code=tuple((each, 1) for each in found[:1]),
    )


@pytest.fixture(scope="module")
def hostile(demo: ClusterReading) -> ClusterReading:
    return hostile_reading(demo)


def hostile_reading(demo: ClusterReading) -> ClusterReading:
    """Return the reading with other names, a workload with many findings, and many groups of findings."""
    row = demo.state.workloads[0]
    rows = [workload_with(row, name, [name]) for name in NAMES]
    rows.append(workload_with(row, "many", [f"{NAMES[0]}{i}" for i in range(NUMBER)]))
    by_workload = {(each.namespace, each.name): each for each in rows}
    many = [msgspec.structs.replace(rows[0], namespace=f"{NAMES[0]}{i}") for i in range(NUMBER)]
    [pod, *_] = demo.state.pods[row.namespace, row.name]
    nodes = [msgspec.structs.replace(demo.state.nodes[0], name=name, product=name, warning=name) for name in NAMES]
    pods = {key: (pod._replace(name=key[0], node=key[0]),) for key in by_workload}
    state = msgspec.structs.replace(
        demo.state,
        cluster=NAMES[0],
        workloads=tuple(rows),
        by_workload=by_workload,
        pods=pods,
        policies_of={key: frozenset(NAMES) for key in by_workload},
        nodes=tuple(nodes),
    )
    limits = tuple(demo.limits[0]._replace(namespace=name, name=name, corrected=name) for name in NAMES)
    return demo._replace(state=state, findings=group_console_findings(many, ()), limits=limits)


@pytest.fixture(scope="module")
def address(hostile: ClusterReading) -> Iterator[str]:
    with served_console(NewestReading(hostile)) as served:
        yield served


PAGES = {
    "overview": "/",
    "workloads": "/workloads",
    "nodes": "/nodes",
    "findings": "/findings",
    "quotas": "/quotas",
    "many findings": workload_address("many", "Deployment/many"),
    **{f"a workload, {i}": workload_address(name, f"Deployment/{name}") for i, name in enumerate(NAMES)},
    **{f"a filter, {i}": page_address("/workloads", q=name) for i, name in enumerate(NAMES)},
}


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_hostile_names_change_nothing(browser: BrowserProcess, address: str, path: str) -> None:
    with browser.open() as page:
        assert page.go(address + path) == 200
        assert find_layout_errors_by_width(page) == {}
        assert page.evaluate(STATE) == [
            "undefined",
            1,
        ]
        assert {request.split()[1].startswith(address) for request in page.requests} == {True}
        assert page.errors == []


def test_ten_thousand_findings_are_shown_in_parts(browser: BrowserProcess, address: str) -> None:
    with browser.open() as page:
        page.go(f"{address}/findings")
        assert page.evaluate("return document.querySelectorAll('tbody tr').length") == 100
        assert "1 to 100 of 10000 groups" in page.evaluate("return document.querySelector('main').innerText")
        page.go(address + PAGES["many findings"])
        assert "and 9800 more" in page.evaluate("return document.querySelector('main').innerText")
