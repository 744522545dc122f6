"""The result of `simulate`: allocation, fragmentation and unschedulable pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.report.charts import line_chart
from webhook.report.check import kubectl_name
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, format_gpus, pluralize, sanitize, without_style

TABLE_STEPS = 8
"""Steps that a table shows, evenly spread."""


class SimulationStep(msgspec.Struct, frozen=True):
    """State of the cluster after some arrivals. GPUs are thousandths.

    Attributes:
        requested: By all pods so far, with those of the start.
        allocated: To scheduled pods.
        fragmented: Free, and unusable by a typical pod of the mix.
        placed: Number of scheduled pods.
        unplaced: Number of pods that were denied or are unschedulable.
    """

    requested: int
    allocated: int
    fragmented: int
    placed: int
    unplaced: int


class SimulatedObject(NamedTuple):
    """A Kubernetes object whose pods are simulated."""

    api_version: str
    kind: str
    namespace: str
    name: str


class SimulationResult(msgspec.Struct, frozen=True):
    """A simulation.

    Attributes:
        capacity: GPUs of the cluster, in thousandths.
        steps: From the first to the last.
        reasons: Pods that were not placed, by reason.
        denied: Number of them that were denied at admission: they are not created.
        unplaced: Number of them of each Kubernetes object.
        initially_allocated: GPUs allocated at the start, in thousandths.
        keep_reasons: Pods that keep their GPU request, by the stable word of the reason.
    """

    strategy: str
    nodes: int
    capacity: int
    steps: tuple[SimulationStep, ...]
    reasons: Mapping[str, int]
    initially_allocated: int = 0
    keep_reasons: Mapping[str, int] = {}
    denied: int = 0
    unplaced: Mapping[SimulatedObject, int] = {}


def simulation_columns(capacity: int = 0) -> Table[SimulationStep]:
    """Return the columns; a table shows GPUs in percent of the capacity."""
    return Table(
        (
            Column("requestedMilli", lambda s: s.requested, "Requested", lambda s: _percent_of(s.requested, capacity)),
            Column("allocatedMilli", lambda s: s.allocated, "Allocated", lambda s: _percent_of(s.allocated, capacity)),
            Column(
                "fragmentedMilli", lambda s: s.fragmented, "Fragmented", lambda s: _percent_of(s.fragmented, capacity)
            ),
            Column("placed", lambda s: s.placed, "Placed"),
            Column("unplaced", lambda s: s.unplaced, "Unplaced"),
        )
    )


def _percent_of(amount: int, capacity: int) -> str:
    return f"{100 * amount / capacity:.2f}%" if capacity else ""


def simulation_table(run: SimulationResult, paint: Paint = without_style) -> list[str]:
    """Return some steps, the reasons of pods that were not placed, and the end in one sentence."""
    last, total = run.steps[-1], format_gpus(run.capacity)
    stride = max(1, len(run.steps) // TABLE_STEPS)
    shown = [*run.steps[stride - 1 : -1 : stride], last]
    allocated = f"{format_gpus(last.allocated)} of {total} GPUs allocated ({_percent_of(last.allocated, run.capacity)})"
    before = f", {format_gpus(run.initially_allocated)} of them at the start" if run.initially_allocated else ""
    denied = f"{run.denied} denied, " if run.denied else ""
    return [
        *simulation_columns(run.capacity).to_lines(shown, paint),
        "",
        *(f"{number:>6}  {sanitize(reason)}" for reason, number in Counter(run.reasons).most_common()),
        f"{run.strategy} on {pluralize(run.nodes, 'node')}: {pluralize(last.placed, 'pod')} placed, {denied}"
        f"{last.unplaced - run.denied} unschedulable; {allocated}{before}.",
    ]


def simulation_document(run: SimulationResult) -> dict[str, Any]:
    """Return the simulation as plain data."""
    return {
        "strategy": run.strategy,
        "nodes": run.nodes,
        "capacityMilli": run.capacity,
        "initiallyAllocatedMilli": run.initially_allocated,
        "unplaced": [{"message": reason, "pods": pods} for reason, pods in Counter(run.reasons).most_common()],
        "denied": run.denied,
        "unplacedObjects": [{**_object_fields(each), "pods": pods} for each, pods in run.unplaced.items()],
        "keepReasons": dict(run.keep_reasons),
        "steps": list(map(simulation_columns().to_document, run.steps)),
    }


def _object_fields(each: SimulatedObject) -> dict[str, str]:
    return {
        "apiVersion": each.api_version,
        "kind": each.kind,
        "namespace": each.namespace,
        "name": each.name,
    }


def unplaced_names(run: SimulationResult) -> list[str]:
    """Return kind and name of the objects with pods that were not placed."""
    return [kubectl_name(each.api_version, each.kind, each.name) for each in run.unplaced]


def simulation_svg(run: SimulationResult) -> str:
    """Draw allocation and fragmentation over the requested GPUs."""
    percent = 100 / max(1, run.capacity)
    lines = {
        "allocated": [(step.requested * percent, step.allocated * percent) for step in run.steps],
        "fragmented": [(step.requested * percent, step.fragmented * percent) for step in run.steps],
    }
    title = f"{run.strategy}, {pluralize(run.nodes, 'node')}, {format_gpus(run.capacity)} GPUs"
    return line_chart(title, lines, across="requested, % of the GPUs", up="% of the GPUs")
