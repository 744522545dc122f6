"""The next steps in a cluster: to correct what is denied, then those that free GPUs, each with their number."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.decisions import KeepReason
from webhook.model.enums import PolicyMode
from webhook.model.gpu_resources import CARD_MILLI
from webhook.report.console.layout import LayoutOutcome
from webhook.report.console.query import page_address
from webhook.report.console.state import ConsoleState
from webhook.report.costs import NO_COST, GpuCost, cost_text, gpu_cost
from webhook.report.layout_text import changes_text
from webhook.report.text import LABELS, format_gpus_with_unit, pluralize
from webhook.report.workloads import WorkloadReport

MAX_STEPS = 12

_REASONS = {reason.value: reason for reason in KeepReason}


class NextStep(NamedTuple):
    """A step, and why it is worth taking.

    Attributes:
        worth: The GPUs that it frees, and their cost.
        at_most: Whether it may free fewer.
        action: What to do, as a sentence.
        link: The address of the page that lists what it is about.
        link_text: The text of that link.
        worth_text: The worth for people: the GPUs, or the pods that are denied.
    """

    worth: GpuCost
    at_most: bool
    action: str
    link: str
    link_text: str
    worth_text: str


def next_steps(state: ConsoleState, plan: LayoutOutcome | None = None) -> list[NextStep]:
    """Return what is denied, then the steps that free GPUs: those of known worth, then those of at most some.

    Args:
        plan: The newest plan of MIG layouts; None before the first.
    """
    found = itertools.chain(_freeing_steps(state), _layout_step(state, plan))
    steps = [each for each in found if each.worth.milli > 0]
    steps.sort(key=lambda each: (each.at_most, -each.worth.milli, each.action))
    return [*_denial_step(state), *steps][:MAX_STEPS]


def _denial_step(state: ConsoleState) -> Iterator[NextStep]:
    """Yield what to do about pods that could not be created again; nothing without such pods."""
    rows = [row for row in state.workloads if row.denied]
    if not rows:
        return
    codes = Counter[str]()
    for row in rows:
        codes.update({found.code: pods for found, pods in row.pods_by_code if found.mode is PolicyMode.ENFORCE})
    counts = abbreviate_names([f"{code} ({pluralize(pods, 'pod')})" for code, pods in codes.most_common()])
    pods, workloads = pluralize(sum(row.denied for row in rows), "pod"), pluralize(len(rows), "workload")
    action = f"Correct the pods of {workloads} that would be denied if they were created again: {counts}."
    link = page_address("/findings", mode=LABELS[PolicyMode.ENFORCE])
    yield NextStep(NO_COST, False, action, link, "These findings", f"{pods} denied")


def _freeing_steps(state: ConsoleState) -> Iterator[NextStep]:
    yield from _idle_step(state)
    yield from _saving_steps(state)
    yield from _reason_steps(state)
    yield from _node_steps(state)
    yield from _usage_step(state)


def _idle_step(state: ConsoleState) -> Iterator[NextStep]:
    rows = [row for row in state.workloads if row.idle.milli]
    worth = _sum_costs(row.idle for row in rows)
    action = f"Stop {pluralize(len(rows), 'idle workload')}, or ask the owners: no GPU engine was active."
    yield _step(state, worth, action, page_address("/workloads", show="idle", sort="-wasted"), "Idle workloads")


def _saving_steps(state: ConsoleState) -> Iterator[NextStep]:
    """Yield what policies in audit mode would save, and what those in force would save once pods are created again."""
    trials = [row for row in state.workloads if row.gpu_milli_audit_saved > 0]
    policies = f"right-sizing for {pluralize(len(trials), 'workload')} that policies in audit or warn mode would change"
    worth = _savings_of(trials, sum(row.gpu_milli_audit_saved for row in trials))
    address = page_address("/workloads", show="audit", sort="-audit-saved")
    yield _step(state, worth, f"Enforce {policies}.", address, "What would change")
    present = [row for row in state.workloads if row.gpu_milli_saved > 0]
    worth = _savings_of(present, sum(row.gpu_milli_saved for row in present))
    action = f"Create the pods of {pluralize(len(present), 'workload')} again: the policies already give them less."
    yield _step(state, worth, action, page_address("/workloads", show="saved", sort="-saved"), "These workloads")


def _reason_steps(state: ConsoleState) -> Iterator[NextStep]:
    """Yield what would let workloads that keep their GPUs get less; how much is unknown."""
    groups: defaultdict[KeepReason, list[WorkloadReport]] = defaultdict(list)
    for row in state.workloads:
        if row.keep_reason and (reason := _REASONS[row.keep_reason]).fix:
            groups[reason].append(row)
    for reason, rows in groups.items():
        served = [row for row in rows if reason is not KeepReason.NO_OFFER or row.needed_mib <= state.largest_part_mib]
        worth = _sum_costs(row.allocated - row.waste for row in served)
        keep = "keeps its GPUs," if len(rows) == 1 else "keep their GPUs, each"
        action = f"{pluralize(len(rows), 'workload')} {keep} because {reason.sentence}. {reason.fix}"
        if len(served) < len(rows):
            action += (
                f" No layout helps {len(rows) - len(served)} of them: the need is more than any slice or share has."
            )
        address = page_address("/workloads", reason=reason.value)
        yield _step(state, worth, action, address, "These workloads", at_most=True)


def _node_steps(state: ConsoleState) -> Iterator[NextStep]:
    figures = state.utilization
    if figures is None:
        return
    nodes = {node.name: node.unschedulable_node_milli for node in state.nodes if node.unschedulable_node_milli}
    worth = _sum_costs(gpu_cost(name, milli, state.prices) for name, milli in nodes.items())
    why = "it takes no pods, and has unused GPUs" if len(nodes) == 1 else "they take no pods, and have unused GPUs"
    action = f"Return {pluralize(len(nodes), 'node')} to service: {why}."
    yield _step(state, worth, action, page_address("/nodes", show="unschedulable"), "These nodes")
    yield _missing_step(state)
    yield _fragmented_step(state)


def _missing_step(state: ConsoleState) -> NextStep:
    missing = {node.name: CARD_MILLI * node.missing_gpus for node in state.nodes if node.missing_gpus}
    worth = _sum_costs(gpu_cost(name, milli, state.prices) for name, milli in missing.items())
    nodes = f"{pluralize(len(missing), 'node')} {'states' if len(missing) == 1 else 'state'}"
    action = f"Look at the device plugin: {nodes} GPUs in labels, and none is allocatable."
    return _step(state, worth, action, page_address("/nodes", show="missing"), "These nodes", at_most=True)


def _fragmented_step(state: ConsoleState) -> NextStep:
    """Return what lets pods use fragmented GPUs. No MIG layout does: cards that it changes are never fragmented."""
    nodes = {node.name: node.fragmented_milli for node in state.nodes if node.fragmented_milli}
    worth = _sum_costs(gpu_cost(name, milli, state.prices) for name, milli in nodes.items())
    action = (
        f"Keep free GPUs together with the scheduler extender: on {pluralize(len(nodes), 'node')} they are too few, "
        "too small or beside too little free CPU for a typical pod of this cluster."
    )
    return _step(state, worth, action, page_address("/nodes", show="fragmented"), "Fragmented GPUs", at_most=True)


def _layout_step(state: ConsoleState, plan: LayoutOutcome | None) -> Iterator[NextStep]:
    """Yield what the newest plan frees if it changes layouts; without a plan, the most that other layouts could."""
    if plan is None or plan.layout is None:
        worth = _sum_costs(gpu_cost(node.name, node.unused_part_milli, state.prices) for node in state.nodes)
        action = (
            "Plan other MIG layouts and shares: pods do not use this much of the cards that are partitioned or shared. "
            "The plan says how many cards become free, and counts those too that smaller requests leave."
        )
        yield _step(state, worth, action, page_address("/layout"), "Plan layouts", at_most=True)
    elif plan.layout.changes:
        changed = {change.node.node for change in plan.layout.changes}
        unused = sum(node.unused_part_milli for node in state.nodes if node.name in changed)
        action = (
            f"Apply the layouts planned as of {plan.moment}: {changes_text(plan.layout)}. The figure counts slices and "
            f"shares that no pod has, which are not wasted ({format_gpus_with_unit(unused)} of these nodes), and what "
            "right-sizing frees, if its policies are enforced and the pods are created again."
        )
        yield _step(state, plan.layout.freed(), action, page_address("/layout"), "The planned layouts")


def _usage_step(state: ConsoleState) -> Iterator[NextStep]:
    rows = [row for row in state.workloads if row.idle_unknown.milli]
    worth = _sum_costs(row.idle_unknown for row in rows)
    unknown = f"nothing is known about the GPU activity of {pluralize(len(rows), 'workload')} with GPUs now"
    problem = state.usage_problem
    action = f"Make usage readable: {unknown}, because {problem}." if problem else f"Run DCGM exporter: {unknown}."
    address = page_address("/workloads", show="unmeasured")
    yield _step(state, worth, action, address, "Workloads without usage data", at_most=True)


def _step(
    state: ConsoleState, worth: GpuCost, action: str, link: str, link_text: str, *, at_most: bool = False
) -> NextStep:
    amount = f"{'up to ' if at_most else ''}{format_gpus_with_unit(worth.milli)}"
    prices = state.prices
    if prices is not None and worth.micro:
        amount = f"{amount}, {cost_text(worth, worth, f' {prices.currency}/h')}"
    return NextStep(worth, at_most, action, link, link_text, amount)


def _savings_of(rows: Iterable[WorkloadReport], milli: int) -> GpuCost:
    """Return thousandths that workloads would save, with the money if that is known for exactly these."""
    savings = _sum_costs(row.savings for row in rows)
    return savings if savings.milli == milli else GpuCost(milli)


def _sum_costs(costs: Iterable[GpuCost]) -> GpuCost:
    return sum(costs, NO_COST)
