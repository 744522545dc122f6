"""Reach: how many of the pods that could use a smaller GPU get one, and why the others keep theirs.

A pod is eligible if a policy without restrictions would right-size it now: it needs one whole GPU at a time, its need
is known and smaller, and a MIG slice is free that the scheduler would give it. Denied pods are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.model.decisions import AUDIT_MODE, RIGHT_SIZED, KeepReason
from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet
from webhook.model.mig_catalogue import mig_profile_spec
from webhook.placement.mig import CARD_MILLI, mig_geometry
from webhook.report.results import CheckResult
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, format_percent, pluralize, without_style
from webhook.well_known import Json

AUDIT_MODE_MESSAGE = "its policies only audit or warn"
AUDIT_MODE_FIX = "Set rightSizing.mode: enforce in the policy that would right-size it."


_REASONS = {reason.value: reason for reason in KeepReason}


class KeptPods(NamedTuple):
    """Pods that keep their GPUs for one reason.

    Attributes:
        reason: The stable word of a `KeepReason`, or `AUDIT_MODE`.
        message: The same as a sentence.
        fix: What would change it; "" if there is nothing to write.
    """

    pods: int
    reason: str
    message: str
    fix: str


class PartitioningAdvice(NamedTuple):
    """Cards that could be partitioned for pods whose need is known and for which no slice is free.

    Attributes:
        product: The cards, by their label.
        instances: Instances of the profile on each card.
    """

    product: str
    cards: int
    profile: str
    instances: int
    pods: int

    def __str__(self) -> str:
        cards = pluralize(self.cards, f"{self.product} card")
        return f"Partition {cards} as {self.instances} x {self.profile}: up to {pluralize(self.pods, 'more pod')}"


class ReachReport(NamedTuple):
    """The reach of right-sizing among the pods of a cluster.

    Attributes:
        eligible: Pods that could use a smaller GPU now.
        right_sized: Those that get one.
        kept: The others, by reason, the most pods first.
        ineligible: All other pods with GPUs, by reason.
        partitioning: What other partitions would add.
    """

    eligible: int
    right_sized: int
    kept: tuple[KeptPods, ...]
    ineligible: tuple[KeptPods, ...]
    partitioning: tuple[PartitioningAdvice, ...]

    def __str__(self) -> str:
        if not self.eligible:
            return "no pod could use a smaller GPU that is free now"
        share = format_percent(1000 * self.right_sized // self.eligible)
        return f"{self.right_sized} of {pluralize(self.eligible, 'eligible pod')} right-sized ({share})"


KEPT_PODS = Table[KeptPods](
    (
        Column("pods", lambda row: row.pods, "Pods", numeric=True),
        Column("reason", lambda row: row.reason, "Kept because", code=True),
        Column("message", lambda row: row.message, "Meaning"),
        Column("fix", lambda row: row.fix, "What would change it"),
    )
)


def summarize_reach(results: Iterable[CheckResult], fleet: Fleet) -> ReachReport | None:
    """Sum up the audited pods of a cluster; None if its nodes are unknown."""
    if not fleet.nodes:
        return None
    found = [each.pod_details.reach for each in results if each.pod_details is not None and each.pod_details.reach]
    eligible = Counter(each.outcome for each in found if each.eligible)
    ineligible = Counter(each.outcome for each in found if not each.eligible)
    kept = Counter({outcome: pods for outcome, pods in eligible.items() if outcome != RIGHT_SIZED})
    needs = Counter(each.missing_mib for each in found if each.missing_mib)
    return ReachReport(
        eligible.total(),
        eligible[RIGHT_SIZED],
        _kept_pods(kept),
        _kept_pods(ineligible),
        _advise_partitioning(needs, fleet),
    )


def _kept_pods(counts: Counter[str]) -> tuple[KeptPods, ...]:
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(KeptPods(pods, reason, *_explain_reason(reason)) for reason, pods in ranked)


def _explain_reason(reason: str) -> tuple[str, str]:
    if reason == AUDIT_MODE:
        return AUDIT_MODE_MESSAGE, AUDIT_MODE_FIX
    kept = _REASONS[reason]
    return kept.sentence, kept.fix


def _advise_partitioning(needs: Counter[int], fleet: Fleet) -> tuple[PartitioningAdvice, ...]:
    """Return the partitions that would cover needs for which no slice is free, on products that the cluster has whole.

    Args:
        needs: Pods by GPU memory that they need, in MiB.
    """
    whole = {offer.product: offer.capacity for offer in fleet.offers if offer.form is GpuForm.WHOLE}
    pods: Counter[tuple[str, str, int]] = Counter()
    for memory_mib, count in needs.items():
        if found := _smallest_profile(memory_mib, whole):
            pods[found] += count
    return tuple(
        PartitioningAdvice(product, min(whole[product], -(-count // instances)), profile, instances, count)
        for (product, profile, instances), count in sorted(pods.items())
    )


def _smallest_profile(memory_mib: int, products: Iterable[str]) -> tuple[str, str, int] | None:
    """Return the profile that covers a need with the smallest part of a card: product, profile, instances of a card."""
    found = (
        (profile.milli, product, profile.name, len(profile.starts))
        for product in products
        if (geometry := mig_geometry(product)) is not None
        for profile in geometry.profiles
        if profile.milli < CARD_MILLI and _profile_memory(product, profile.name) >= memory_mib
    )
    best = min(found, default=None)
    return best[1:] if best else None


def _profile_memory(product: str, profile: str) -> int:
    spec = mig_profile_spec(product, profile)
    return spec.memory_mib if spec is not None else 0


def reach_lines(reach: ReachReport, paint: Paint = without_style) -> Iterator[str]:
    """Yield the reach for a terminal: the total, why eligible pods keep their GPUs, and what partitions would add."""
    yield f"Reach: {reach}"
    if reach.ineligible:
        yield f"Not eligible: {', '.join(f'{each.pods} {each.reason}' for each in reach.ineligible)}"
    if reach.kept:
        yield from KEPT_PODS.to_lines(reach.kept, paint)
    yield from map(str, reach.partitioning)


def reach_document(reach: ReachReport) -> Json:
    """Return the reach as plain data."""
    return {
        "eligiblePods": reach.eligible,
        "rightSizedPods": reach.right_sized,
        "kept": list(map(KEPT_PODS.to_document, reach.kept)),
        "ineligible": list(map(KEPT_PODS.to_document, reach.ineligible)),
        "partitioning": [each._asdict() for each in reach.partitioning],
    }
