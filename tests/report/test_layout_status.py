"""The state of nodes whose MIG layout is set by labels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.checkout import read_checkout_file
from webhook.placement.node_layouts import NodeChange, NodeLayout
from webhook.report.layout_files import SCRIPT_FILE, PlannedNode, config_name, layout_files, planned_nodes
from webhook.report.layout_status import (
    CONFIG_LABEL,
    PROGRESS,
    SHARING_CONFIG_LABEL,
    STATE_LABEL,
    LayoutProgress,
    layout_progress,
)

NOON, LATER = "2026-06-01T12:00:00Z", "2026-06-01T12:10:00Z"


def node(labels: dict[str, str], times: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A node, with the time when each label was set."""
    fields = [
        {"time": time, "fieldsV1": {"f:metadata": {"f:labels": {f"f:{label}": {}}}}}
        for label, time in (times or {}).items()
    ]
    return {"metadata": {"name": "n", "labels": labels, "managedFields": fields}, "spec": spec}


STATES: dict[str, tuple[dict[str, Any], LayoutProgress]] = {
    "the label is not set yet": (node({}), LayoutProgress("n", "new", "-", "not requested")),
    "another layout": (
        node({CONFIG_LABEL: "old", STATE_LABEL: "success"}, {STATE_LABEL: NOON}),
        LayoutProgress("n", "new", "-", "not requested"),
    ),
    "no result yet": (
        node({CONFIG_LABEL: "new"}, {CONFIG_LABEL: NOON}, unschedulable=True),
        LayoutProgress("n", "new", "-", "pending", NOON, cordoned=True),
    ),
    "the word of the MIG manager, since it was set": (
        node({CONFIG_LABEL: "new", STATE_LABEL: "rebooting"}, {CONFIG_LABEL: NOON, STATE_LABEL: LATER}),
        LayoutProgress("n", "new", "-", "rebooting", LATER),
    ),
    "done, and nobody knows since when": (
        node({CONFIG_LABEL: "new", STATE_LABEL: "success"}),
        LayoutProgress("n", "new", "-", "success"),
    ),
}


@pytest.mark.parametrize(("found", "expected"), STATES.values(), ids=STATES.keys())
def test_the_state_of_a_planned_node(found: dict[str, Any], expected: LayoutProgress) -> None:
    assert layout_progress([found], {"n": PlannedNode("new")}) == [expected]


SHARED = PlannedNode("new", "mps-4", "8")
MIG_DONE = {CONFIG_LABEL: "new", STATE_LABEL: "success"}
SHARES: dict[str, tuple[dict[str, str], str, str]] = {
    "the MIG layout comes first": ({SHARING_CONFIG_LABEL: "mps-4"}, "8", "not requested"),
    "the label of the shares is not set yet": (MIG_DONE, "8", "not requested"),
    "not all shares are advertised yet": (MIG_DONE | {SHARING_CONFIG_LABEL: "mps-4"}, "0", "pending"),
    "done": (MIG_DONE | {SHARING_CONFIG_LABEL: "mps-4"}, "8", "success"),
}


@pytest.mark.parametrize(("labels", "advertised", "expected"), SHARES.values(), ids=SHARES.keys())
def test_the_state_of_a_node_that_gets_shares(labels: dict[str, str], advertised: str, expected: str) -> None:
    found = node(labels) | {"status": {"allocatable": {"nvidia.com/gpu.shared": advertised}}}

    assert layout_progress([found], {"n": SHARED}) == [LayoutProgress("n", "new", "mps-4", expected)]


def test_a_node_that_gets_shares_alone() -> None:
    found = node({SHARING_CONFIG_LABEL: "not-shared"}, {SHARING_CONFIG_LABEL: NOON})

    assert layout_progress([found], {"n": PlannedNode("-", "not-shared", "0")}) == [
        LayoutProgress("n", "-", "not-shared", "success", NOON)
    ]


def test_a_planned_node_that_is_gone() -> None:
    assert layout_progress([], {"n": PlannedNode("new")}) == [LayoutProgress("n", "new", "-", "no such node")]


def test_without_a_plan_all_nodes_with_a_configuration_are_shown() -> None:
    other = {"metadata": {"name": "plain"}}

    assert layout_progress([other, node({CONFIG_LABEL: "any", STATE_LABEL: "failed"})]) == [
        LayoutProgress("n", "any", "-", "failed")
    ]


def test_the_planned_nodes_are_read_from_a_written_script() -> None:
    layouts = ((("1g.10gb", 7),), ())
    names = ("gpu-1", "gpu-2.example.com")
    changes = [NodeChange(NodeLayout(name, "NVIDIA-A30", ((), ())), layouts) for name in names]

    assert planned_nodes(layout_files(changes, 2)[SCRIPT_FILE]) == dict.fromkeys(
        names, PlannedNode(config_name(layouts))
    )
    assert planned_nodes("#!/bin/sh\necho finish a b\nfinish() {\n") == {}


def test_the_page_shows_the_state_of_two_nodes_as_it_is_printed() -> None:
    rows = [
        LayoutProgress("h100-mixed", "rightslice-26b8f8b01c", "-", "pending", "2026-06-01T12:03:11Z", cordoned=True),
        LayoutProgress("h100-whole", "rightslice-26b8f8b01c", "-", "not requested"),
    ]
    shown = read_checkout_file("docs/layout.md").split("$ rightslice layout status layout/\n", 1)[1].split("```", 1)[0]

    assert list(PROGRESS.to_lines(rows)) == shown.splitlines()
