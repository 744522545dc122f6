"""What a simulation came to: allocation, fragmentation, and who found no place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.report.svg import line_chart
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, pluralize, sanitize, without_style

HEAD = ("ASKED", "ALLOCATED", "SPLIT-UP", "PLACED", "LEFT")


class SimulationStep(msgspec.Struct, frozen=True):
    """How things stand after some arrivals. GPUs are thousandths.

    Attributes:
        asked: By all pods so far, those that were there before included.
        allocated: By those that found a place.
        split: Free, and of no use to a pod of the mix, on average.
        placed: Pods with a place.
        left: Pods without.
    """

    requested: int
    allocated: int
    fragmented: int
    placed: int
    unplaced: int


class SimulationResult(msgspec.Struct, frozen=True):
    """A simulation.

    Attributes:
        policy: What ranked the nodes.
        nodes: How many there are.
        capacity: GPUs of the cluster, in thousandths.
        moments: From the first to the last.
        reasons: Pods without a place, by reason.
        held: GPUs that pods held before the first came, in thousandths.
    """

    policy: str
    nodes: int
    capacity: int
    steps: tuple[SimulationStep, ...]
    reasons: Mapping[str, int]
    initially_allocated: int = 0


def simulation_table(run: SimulationResult, paint: Paint = without_style) -> list[str]:
    """A few moments on the way, the end, and the reasons."""
    rows = [_simulation_row(moment, run.capacity) for moment in _sample_steps(run.steps)]
    head, *table = align_columns([HEAD, *rows])
    last = run.steps[-1]
    lines = [paint(head, TextStyle.STRONG), *table, ""]
    lines += [f"{number:>6}  {sanitize(reason)}" for reason, number in Counter(run.reasons).most_common()]
    said = f"{pluralize(last.placed, 'pod')} placed, {last.unplaced} without a place"
    part = (
        f"{format_gpus(last.allocated)} of {format_gpus(run.capacity)} GPUs allocated "
        f"({_capacity_percent(last.allocated, run.capacity)})"
    )
    before = (
        f", {format_gpus(run.initially_allocated)} of them by pods that were there before"
        if run.initially_allocated
        else ""
    )
    return [*lines, f"{run.policy} on {pluralize(run.nodes, 'node')}: {said}; {part}{before}."]


def _sample_steps(moments: Sequence[SimulationStep], most: int = 8) -> list[SimulationStep]:
    """Evenly spread moments, the last among them."""
    step = max(1, len(moments) // most)
    return [*moments[step - 1 : -1 : step], moments[-1]]


def _simulation_row(moment: SimulationStep, capacity: int) -> tuple[str, ...]:
    parts = (_capacity_percent(amount, capacity) for amount in (moment.requested, moment.allocated, moment.fragmented))
    return (*parts, str(moment.placed), str(moment.unplaced))


def _capacity_percent(amount: int, capacity: int) -> str:
    return f"{100 * amount / capacity:.2f}%" if capacity else "-"


def simulation_document(run: SimulationResult) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "policy": run.policy,
        "nodes": run.nodes,
        "capacityMilli": run.capacity,
        "heldMilli": run.initially_allocated,
        "unplaced": dict(run.reasons),
        "moments": [
            {
                "askedMilli": moment.requested,
                "allocatedMilli": moment.allocated,
                "splitUpMilli": moment.fragmented,
                "placed": moment.placed,
                "unplaced": moment.unplaced,
            }
            for moment in run.steps
        ],
    }


def simulation_svg(run: SimulationResult) -> str:
    """Allocation and fragmentation over what has been asked for."""

    def line(name: str) -> list[tuple[float, float]]:
        whole = max(1, run.capacity)
        return [(100 * moment.requested / whole, 100 * int(getattr(moment, name)) / whole) for moment in run.steps]

    lines = {"allocated": line("allocated"), "free, but split up": line("split")}
    title = f"{run.policy}, {pluralize(run.nodes, 'node')}, {format_gpus(run.capacity)} GPUs"
    return line_chart(title, lines, across="% of the GPUs asked for", up="% of the GPUs")
