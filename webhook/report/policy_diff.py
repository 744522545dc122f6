"""The result of `policy diff`: what a change of policies would do to the pods that run, by workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from webhook.report.text import format_gpus, pluralize, sanitize

MAX_NAMED_WORKLOADS = 5
"""Workloads that the table names for each kind of change; JSON names all."""


class PodPolicyDiff(msgspec.Struct, frozen=True, gc=False):
    """What differs for one pod between the old policies and the new ones.

    Attributes:
        denied: It would be refused now, and was let in.
        allowed: It would be let in now, and was refused.
        patched: It would be let in, and be made something else.
        codes: Of the findings that refuse it, or did.
        gpu_milli: Thousandths of a GPU that it would get less, where it is patched anew.
        warned: Codes of warnings that it would be let in with, and was not given.
    """

    namespace: str
    workload: str
    denied: bool = False
    allowed: bool = False
    patched: bool = False
    codes: tuple[str, ...] = ()
    gpu_milli_saved: int = 0
    warned: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Is there anything to say of it?"""
        return any(getattr(self, kind) for kind in CHANGE_KINDS)


class WorkloadPolicyDiff(NamedTuple):
    """What a change of policies does to one workload."""

    kind: str
    namespace: str
    workload: str
    pods: int
    codes: tuple[str, ...]
    gpu_milli_saved: int


CHANGE_KINDS = {
    "denied": "newly denied",
    "allowed": "newly allowed",
    "patched": "patched anew",
    "warned": "newly warned",
}


def policy_diffs_by_workload(compared: Iterable[PodPolicyDiff]) -> list[WorkloadPolicyDiff]:
    """Add up by kind and workload: the workload with most pods first, then by name."""
    pods: Counter[tuple[str, str, str]] = Counter()
    milli: Counter[tuple[str, str, str]] = Counter()
    codes: dict[tuple[str, str, str], dict[str, None]] = {}
    for each in compared:
        for kind in CHANGE_KINDS:
            if getattr(each, kind):
                key = (kind, each.namespace, each.workload)
                pods[key] += 1
                milli[key] += each.gpu_milli_saved if kind == "patched" else 0
                codes.setdefault(key, {}).update(dict.fromkeys(each.warned if kind == "warned" else each.codes))
    order = list(CHANGE_KINDS)
    ranked = sorted(pods, key=lambda key: (order.index(key[0]), -pods[key], key))
    return [WorkloadPolicyDiff(*key, pods[key], tuple(codes[key]), milli[key]) for key in ranked]


def policy_diff_table(policies: Iterable[str], changes: Iterable[WorkloadPolicyDiff]) -> Iterator[str]:
    """For people: the policies that differ, then each kind of change with the workloads that it is about."""
    every = list(changes)
    yield from (sanitize(line) for line in policies)
    for kind, words in CHANGE_KINDS.items():
        members = [change for change in every if change.kind == kind]
        yield (
            f"  {words:<13}  {pluralize(sum(change.pods for change in members), 'pod')}{_diff_workload_names(members)}"
        )
    saved = sum(change.gpu_milli_saved for change in every)
    if saved:
        amount = f"{format_gpus(abs(saved))} {'less' if saved > 0 else 'more'}"
        yield f"  {'GPUs':<13}  {amount} would be given to those patched anew"
    if any(change.kind == "denied" for change in every):
        yield "Denied pods keep running; they would be refused when next created."


def _diff_workload_names(members: list[WorkloadPolicyDiff]) -> str:
    named = [_diff_workload_name(change) for change in members[:MAX_NAMED_WORKLOADS]]
    more = [f"{len(members) - MAX_NAMED_WORKLOADS} more"] if len(members) > MAX_NAMED_WORKLOADS else []
    return f"  {', '.join([*named, *more])}" if named else ""


def _diff_workload_name(change: WorkloadPolicyDiff) -> str:
    pods = f" ({change.pods})" if change.pods > 1 else ""
    codes = f" {'+'.join(change.codes)}" if change.codes else ""
    return sanitize(f"{change.namespace}/{change.workload}{pods}{codes}")


def policy_diff_document(policies: Iterable[str], changes: Iterable[WorkloadPolicyDiff]) -> dict[str, Any]:
    """The same as plain data."""
    every = list(changes)
    return {
        "policies": list(policies),
        **{
            f"newly{kind.title()}" if kind != "patched" else "patchedAnew": [
                _workload_diff_document(change) for change in every if change.kind == kind
            ]
            for kind in CHANGE_KINDS
        },
    }


def _workload_diff_document(change: WorkloadPolicyDiff) -> dict[str, Any]:
    return {
        "namespace": change.namespace,
        "workload": change.workload,
        "pods": change.pods,
        "codes": list(change.codes),
        "gpuMilliSaved": change.gpu_milli_saved,
    }
