"""What a simulation came to: allocation, fragmentation, and who found no place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.report.svg import curves
from webhook.report.words import Paint, Style, columns, count, gpus, plain, shown

HEAD = ("ASKED", "ALLOCATED", "SPLIT-UP", "PLACED", "LEFT")


class Moment(msgspec.Struct, frozen=True):
    """How things stand after some arrivals. GPUs are thousandths.

    Attributes:
        asked: By all pods so far, those that were there before included.
        allocated: By those that found a place.
        split: Free, and of no use to a pod of the mix, on average.
        placed: Pods with a place.
        left: Pods without.
    """

    asked: int
    allocated: int
    split: int
    placed: int
    left: int


class Simulated(msgspec.Struct, frozen=True):
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
    moments: tuple[Moment, ...]
    reasons: Mapping[str, int]
    held: int = 0


def simulated_table(run: Simulated, paint: Paint = plain) -> list[str]:
    """A few moments on the way, the end, and the reasons."""
    rows = [_row(moment, run.capacity) for moment in _some(run.moments)]
    head, *table = columns([HEAD, *rows])
    last = run.moments[-1]
    lines = [paint(head, Style.STRONG), *table, ""]
    lines += [f"{number:>6}  {shown(reason)}" for reason, number in Counter(run.reasons).most_common()]
    said = f"{count(last.placed, 'pod')} placed, {last.left} without a place"
    part = f"{gpus(last.allocated)} of {gpus(run.capacity)} GPUs allocated ({_percent(last.allocated, run.capacity)})"
    before = f", {gpus(run.held)} of them by pods that were there before" if run.held else ""
    return [*lines, f"{run.policy} on {count(run.nodes, 'node')}: {said}; {part}{before}."]


def _some(moments: Sequence[Moment], most: int = 8) -> list[Moment]:
    """Evenly spread moments, the last among them."""
    step = max(1, len(moments) // most)
    return [*moments[step - 1 : -1 : step], moments[-1]]


def _row(moment: Moment, capacity: int) -> tuple[str, ...]:
    parts = (_percent(amount, capacity) for amount in (moment.asked, moment.allocated, moment.split))
    return (*parts, str(moment.placed), str(moment.left))


def _percent(amount: int, capacity: int) -> str:
    return f"{100 * amount / capacity:.2f}%" if capacity else "-"


def simulated_document(run: Simulated) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "policy": run.policy,
        "nodes": run.nodes,
        "capacityMilli": run.capacity,
        "heldMilli": run.held,
        "unplaced": dict(run.reasons),
        "moments": [
            {
                "askedMilli": moment.asked,
                "allocatedMilli": moment.allocated,
                "splitUpMilli": moment.split,
                "placed": moment.placed,
                "unplaced": moment.left,
            }
            for moment in run.moments
        ],
    }


def simulated_svg(run: Simulated) -> str:
    """Allocation and fragmentation over what has been asked for."""

    def line(name: str) -> list[tuple[float, float]]:
        whole = max(1, run.capacity)
        return [(100 * moment.asked / whole, 100 * int(getattr(moment, name)) / whole) for moment in run.moments]

    lines = {"allocated": line("allocated"), "free, but split up": line("split")}
    title = f"{run.policy}, {count(run.nodes, 'node')}, {gpus(run.capacity)} GPUs"
    return curves(title, lines, across="% of the GPUs asked for", up="% of the GPUs")
