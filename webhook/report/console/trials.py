"""The page Try one: the form, how far a trial is, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from webhook.report.console.page import TRIAL_ENTRY, render_console_page
from webhook.report.console.query import FilterField, page_address, workload_address
from webhook.report.console.rows import table_markup
from webhook.report.console.state import ConsoleState
from webhook.report.tables import Column, Table
from webhook.report.text import format_gpus

OBJECTS_LABEL = "Pods or workloads"
POLICIES_LABEL = "Policies"
"""The labels of the two fields of a trial."""

TRIAL_PARAMETER = "trial"
TRIAL_KEY = (FilterField("name", "Policy"), FilterField(TRIAL_PARAMETER, "Trial"))
"""The parameters of the page: a policy to fill the form with, or a trial to show."""

MAX_CHANGES = 500
"""Changed workloads that a trial keeps and its page lists."""


class TrialDecision(NamedTuple):
    """Decisions on the pasted objects, with some policies.

    Attributes:
        title: Which policies.
        report: The findings and totals, as `check -v` prints them.
        explanation: The decision and the changed fields of each object, as `explain -f` prints them.
        patches: The JSON patch of each object that is changed.
    """

    title: str
    report: str
    explanation: str
    patches: str


class WorkloadChange(NamedTuple):
    """A change that the pasted policies would make for one workload.

    Attributes:
        change: In words, such as "newly denied".
        pods: Pods of the workload.
        gpu_milli: Thousandths of a GPU that one pod would get less.
    """

    change: str
    namespace: str
    workload: str
    pods: int
    codes: tuple[str, ...]
    gpu_milli: int


class ClusterTrial(NamedTuple):
    """The changes that the pasted policies would make in the cluster.

    Attributes:
        changes: Workloads for which they make a difference, at most `MAX_CHANGES`.
        counts: How many there are of each change, in words.
        evaluated: How many workloads were evaluated.
        omitted_pods: Pods of further workloads, of which no pod is kept.
        gpu_milli: Thousandths of a GPU that all pods of the changed workloads would get less.
    """

    changes: tuple[WorkloadChange, ...]
    counts: Mapping[str, int]
    evaluated: int
    omitted_pods: int
    gpu_milli: int

    @property
    def total(self) -> str:
        """The GPUs that all pods of these workloads request less, or more; "" if that is none."""
        milli = self.gpu_milli
        return f"{format_gpus(abs(milli))} {'less' if milli > 0 else 'more'}" if milli else ""

    @property
    def hidden_changes(self) -> int:
        """The number of changes that are not kept."""
        return sum(self.counts.values()) - len(self.changes)


class TrialProgress(NamedTuple):
    """Numbers of workloads: evaluated, all, and those for which the policies make a difference."""

    evaluated: int
    workloads: int
    changed: int

    @property
    def announcement(self) -> str:
        """The text for a screen reader, which changes four times a trial."""
        quarters = 4 * self.evaluated // max(1, self.workloads)
        return f"{25 * quarters} percent of the workloads are evaluated."


class TrialOutcome(NamedTuple):
    """The result of a trial, or what is known of it so far.

    Attributes:
        errors: Why the pasted policies cannot be used.
        decisions: On the pasted objects; with pasted policies both before and after them.
        differences: A line for each policy that was added or changed.
        progress: How far the evaluation of the cluster is; None before it, and without pasted policies.
        cluster: What the pasted policies would change in the cluster; None before the end of the evaluation.
    """

    errors: tuple[str, ...] = ()
    decisions: tuple[TrialDecision, ...] = ()
    differences: tuple[str, ...] = ()
    progress: TrialProgress | None = None
    cluster: ClusterTrial | None = None


class TrialPhase(StrEnum):
    """The phase of a trial."""

    RUNNING = "running"
    REPLACED = "replaced"
    ENDED = "ended"


class TrialReport(NamedTuple):
    """A trial as its page shows it.

    Attributes:
        key: Its name in the address; "" for a form that was not sent.
        texts: What was pasted, by field.
        outcome: What is known so far; None before anything is.
        error: Why nothing was evaluated; "" if something was, or will be.
    """

    key: str = ""
    texts: Mapping[str, str] = {}
    phase: TrialPhase = TrialPhase.ENDED
    outcome: TrialOutcome | None = None
    error: str = ""

    @property
    def heading(self) -> str:
        """The title of the page."""
        if self.error:
            return "Nothing was evaluated"
        if self.phase is TrialPhase.RUNNING:
            return "The trial is running"
        if self.phase is TrialPhase.REPLACED:
            return "The trial was stopped"
        return "Try a pod or a policy" if self.outcome is None else "Result of the trial"


WORKLOAD_CHANGES = Table[WorkloadChange](
    (
        Column("", lambda row: row.workload, "Workload"),
        Column("", lambda row: row.namespace, "Namespace"),
        Column("", lambda row: row.change, "Change"),
        Column("", lambda row: row.pods, "Pods", numeric=True),
        Column("", lambda row: " ".join(row.codes), "Codes", empty="", code=True),
        Column(
            "", lambda row: row.gpu_milli, "GPUs less per pod", lambda row: format_gpus(row.gpu_milli), numeric=True
        ),
    )
)


def trial_address(name: str = "") -> str:
    """Return the address of the form, filled with a policy if one is named."""
    return page_address(TRIAL_ENTRY.path, name=name)


def trial_result_address(key: str) -> str:
    """Return the address of the result of a trial."""
    return page_address(TRIAL_ENTRY.path, **{TRIAL_PARAMETER: key})


def trial_page(state: ConsoleState, trial: TrialReport, problem: str = "") -> str:
    """Return the form as HTML, filled with its texts; the result is below it, and why there is none above it."""
    cluster = trial.outcome.cluster if trial.outcome is not None else None
    changes = cluster.changes if cluster is not None else ()
    links = {"Workload": lambda row: workload_address(row.namespace, row.workload)}
    context = {
        "objects": trial.texts.get("objects", ""),
        "policies": trial.texts.get("policies", ""),
        "trial": trial,
        "is_running": trial.phase is TrialPhase.RUNNING,
        "is_replaced": trial.phase is TrialPhase.REPLACED,
        "changes": table_markup(WORKLOAD_CHANGES, changes, "change", links) if changes else "",
        "path": f"{trial_address()}#result",
        "address": trial_result_address(trial.key),
        "objects_label": OBJECTS_LABEL,
        "policies_label": POLICIES_LABEL,
    }
    return render_console_page("try.html", state, TRIAL_ENTRY, context, problem=problem)
