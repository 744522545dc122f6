"""Reach: how many of the pods that could use a smaller GPU get one, and why the others keep theirs.

A pod is eligible if a policy without restrictions would right-size it now: it needs one whole GPU at a time, its need
is known and smaller, and a MIG slice is free that the scheduler would give it. Pods are decided one after another, the
right-sized ones first, so that no slice counts twice. A pod that policies deny is not eligible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from webhook.model.decisions import RIGHT_SIZED
from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import CARD_MILLI, WHOLE_GPU
from webhook.model.mig_catalog import mig_profile_spec
from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.mig import mig_geometry
from webhook.report.code_pages import REASON_TEXTS
from webhook.report.results import CheckResult
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, format_percent, pluralize, without_style
from webhook.well_known import Json


class KeptPods(NamedTuple):
    """Pods that keep their GPUs for one reason.

    Attributes:
        reason: The stable word of a `KeepReason`, `AUDIT_MODE` or `DENIED`.
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


class CardNeed(NamedTuple):
    """GPU memory in MiB for which no slice is free, on any node of a mask of nodes with whole cards."""

    memory_mib: int
    nodes: int


class CardProfile(NamedTuple):
    """A profile of a product, and how many of its instances fit on a card."""

    product: str
    name: str
    instances: int


class ReachReport(NamedTuple):
    """The reach of right-sizing among the pods of a cluster.

    Attributes:
        eligible: Pods that could use a smaller GPU now.
        right_sized: Those that get one.
        kept: The others, by reason, the most pods first.
        ineligible: All other pods with GPUs, by reason.
        partitioning: What other partitions would add.
        alone: Eligible pods that are not decided one after another, because there are too many: fewer may get a slice.
        displaced: Pods whose savings are summed up, each evaluated alone, and for which no slice is left after others.
    """

    eligible: int
    right_sized: int
    kept: tuple[KeptPods, ...]
    ineligible: tuple[KeptPods, ...]
    partitioning: tuple[PartitioningAdvice, ...]
    alone: int = 0
    displaced: int = 0

    @property
    def savings_note(self) -> str:
        """Return how the sums of savings exceed the reach; "" if they do not."""
        if not self.displaced:
            return ""
        pods = pluralize(self.displaced, "more pod")
        return f"The savings count {pods}, each evaluated alone: no slice is left when the others have theirs"

    def __str__(self) -> str:
        if not self.eligible:
            return "no pod is known to fit a smaller GPU that is free now"
        share = format_percent(1000 * self.right_sized // self.eligible)
        eligible = pluralize(self.eligible, "eligible pod")
        alone = f"; {self.alone} of these evaluated alone, so fewer may get a slice" if self.alone else ""
        return f"{self.right_sized} of {eligible} right-sized ({share}){alone}"


KEPT_PODS = Table[KeptPods](
    (
        Column("pods", lambda row: row.pods, "Pods", numeric=True),
        Column("reason", lambda row: row.reason, "Reason", code=True),
        Column("message", lambda row: row.message, "Meaning"),
        Column("fix", lambda row: row.fix, "Fix", terminal=False),
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
    needs = Counter(CardNeed(each.missing_mib, each.card_nodes) for each in found if each.missing_mib)
    return ReachReport(
        eligible.total(),
        eligible[RIGHT_SIZED],
        _kept_pods(kept),
        _kept_pods(ineligible),
        _advise_partitioning(needs, fleet),
        sum(each.alone for each in found),
        sum(each.displaced for each in found),
    )


def _kept_pods(counts: Counter[str]) -> tuple[KeptPods, ...]:
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(KeptPods(pods, reason, *REASON_TEXTS[reason]) for reason, pods in ranked)


def _advise_partitioning(needs: Mapping[CardNeed, int], fleet: Fleet) -> tuple[PartitioningAdvice, ...]:
    """Return the partitions that would cover needs for which no slice is free, on whole cards of the cluster.

    Pods with fewer nodes to choose from get their instances first, and each card is partitioned into one profile.

    Args:
        needs: The number of pods with each need.
    """
    cards = CardPlan(fleet)
    planned = sorted(needs, key=lambda need: (need.nodes.bit_count(), -need.memory_mib, need.nodes))
    for need in planned:
        cards.place_pods(need, needs[need])
    return cards.advice()


class CardPlan:
    """Whole cards of a cluster, and instances into which some of them would be partitioned."""

    def __init__(self, fleet: Fleet) -> None:
        """Start with all cards whole."""
        offers = [offer for offer in fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is GpuForm.WHOLE]
        products = {offer.product for offer in offers}
        self._nodes = {each: union_masks(one.nodes for one in offers if one.product == each) for each in products}
        whole = bit_positions(union_masks(self._nodes.values()))
        self._left = {node: fleet.nodes[node].gpus[WHOLE_GPU] for node in whole}
        self._idle: Counter[tuple[int, CardProfile]] = Counter()
        self._cards: Counter[CardProfile] = Counter()
        self._pods: Counter[CardProfile] = Counter()

    def place_pods(self, need: CardNeed, pods: int) -> None:
        """Plan instances of the smallest profiles for some pods, first on cards that are partitioned already."""
        for profile in _covering_profiles(need.memory_mib, self._nodes):
            nodes = list(bit_positions(need.nodes & self._nodes[profile.product]))
            for node in sorted(nodes, key=lambda node: -self._idle[node, profile]):
                pods -= self._place_on_node(node, profile, pods)

    def _place_on_node(self, node: int, profile: CardProfile, pods: int) -> int:
        """Return how many of the pods get an instance on a node."""
        missing = max(0, pods - self._idle[node, profile])
        cards = min(self._left[node], -(-missing // profile.instances))
        self._left[node] -= cards
        self._cards[profile] += cards
        self._idle[node, profile] += cards * profile.instances
        placed = min(pods, self._idle[node, profile])
        self._idle[node, profile] -= placed
        self._pods[profile] += placed
        return placed

    def advice(self) -> tuple[PartitioningAdvice, ...]:
        """Return what was planned, by product and profile."""
        return tuple(
            PartitioningAdvice(profile.product, self._cards[profile], profile.name, profile.instances, pods)
            for profile, pods in sorted(self._pods.items())
            if pods
        )


def _covering_profiles(memory_mib: int, products: Iterable[str]) -> list[CardProfile]:
    """Return the profiles that cover a need, the smallest part of a card first."""
    found = (
        (profile.milli, CardProfile(product, profile.name, len(profile.starts)))
        for product in products
        if (geometry := mig_geometry(product)) is not None
        for profile in geometry.profiles
        if profile.milli < CARD_MILLI and _profile_memory(product, profile.name) >= memory_mib
    )
    return [profile for _, profile in sorted(found)]


def _profile_memory(product: str, profile: str) -> int:
    spec = mig_profile_spec(product, profile)
    return spec.memory_mib if spec is not None else 0


def reach_lines(reach: ReachReport, paint: Paint = without_style) -> Iterator[str]:
    """Yield the reach for a terminal: the total, why eligible pods keep their GPUs, and what partitions would add."""
    yield f"Reach: {reach}"
    if reach.savings_note:
        yield reach.savings_note
    if reach.ineligible:
        yield f"Not eligible: {', '.join(f'{each.pods} {each.reason}' for each in reach.ineligible)}"
    if reach.kept:
        yield from KEPT_PODS.to_lines(reach.kept, paint)
        yield "What changes this: rightslice explain REASON"
    yield from map(str, reach.partitioning)


def reach_document(reach: ReachReport) -> Json:
    """Return the reach as plain data."""
    return {
        "eligiblePods": reach.eligible,
        "rightSizedPods": reach.right_sized,
        "kept": list(map(KEPT_PODS.to_document, reach.kept)),
        "ineligible": list(map(KEPT_PODS.to_document, reach.ineligible)),
        "partitioning": [each._asdict() for each in reach.partitioning],
        "evaluatedAlonePods": reach.alone,
        "displacedPods": reach.displaced,
    }
