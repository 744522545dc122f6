"""The demand of slices and whole cards: what the pods of a cluster would request if every slice were available.

Each pod is evaluated by the policies as if it were created now, in the same cluster with empty nodes that advertise
every MIG profile of their cards, and shares if a policy allows these. A running pod stays on its product; its request
is fixed by name, or right-sized to any slice or share of that product that covers its need, or it keeps its whole
cards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from webhook.audit.layout_quotas import QuotaCollector
from webhook.audit.layout_view import COPY_MARK, allowed_share_forms
from webhook.engine.demand import covers_need
from webhook.model.decisions import DENIED, Decision, GpuNeed, KeepReason, OfferChoice
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import CARD_MILLI, SHARED_GPU, WHOLE_GPU, parse_gpu_resource
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.placement.layout_plan import WHOLE_CARD, CardUnit, share_of, share_profile
from webhook.placement.mig import legal_layouts, mig_geometry
from webhook.placement.node_layouts import NO_DRAIN_LIMIT, DrainLimit, NodeLayout, nodes_by_product
from webhook.policy.policy_set import InjectionRules, PolicySet
from webhook.report.layout_demand import HostUse, LayoutDemand, RequestOrigin, UnitNeed, unit_resource
from webhook.report.results import CheckResult, UnevaluatedReason
from webhook.well_known import Json

SHARED_NAMES = (WHOLE_GPU, SHARED_GPU)
"""Names of the shares of cards that are not partitioned."""

MOST_REPLICAS = 48
"""Clients of one card that MPS allows."""

MOST_REPLICAS_OF_UNKNOWN_COMPUTE = 7
"""As many as a card has slices: without known compute, the sum of duties is not known to be at most one card."""

WRITTEN_METADATA = ("name", "labels", "annotations")
"""Metadata of policies that users write."""


class WaitingCardSet(NamedTuple):
    """Whole cards that a pod without a node needs on one of some nodes, a mask, and why it keeps them."""

    need: UnitNeed
    gpus: int
    nodes: int
    reason: str


class PodNeed(NamedTuple):
    """The units that one pod needs.

    Attributes:
        runs: Whether it has a node.
        kept: Whole cards among them that it keeps on that node.
    """

    workload: str
    runs: bool
    needs: Mapping[UnitNeed, int]
    kept: Mapping[UnitNeed, int] = {}


class DemandCollector:
    """Sums up what pods need, one audited pod after the other.

    Attributes:
        pods: The need of each pod, by namespace and name.
    """

    def __init__(
        self,
        fleet: Fleet,
        nodes: Mapping[int, NodeLayout],
        policies: PolicySet,
        quotas: QuotaCollector,
        *,
        by_namespace: bool = False,
    ) -> None:
        """Start without pods.

        Args:
            fleet: The nodes with every slice, against which the pods are evaluated.
            nodes: The nodes that can be partitioned, by index.
            quotas: What quotas admit.
            by_namespace: Whether needs of different namespaces are counted separately.
        """
        self.pods: dict[tuple[str, str], PodNeed] = {}
        self._quotas, self._by_namespace = quotas, by_namespace
        self._fleet, self._nodes = fleet, dict(nodes)
        self._by_product = nodes_by_product(nodes.values())
        self._copies = {
            index: fleet.by_name[node.name.partition(COPY_MARK)[0]]
            for index, node in enumerate(fleet.nodes)
            if COPY_MARK in node.name
        }
        self._without_copies = dict[int, int]()
        self._large_nodes: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._savings = {
            policy.name: policy.right_sizing.min_saving_percent for policy in policies.policies if policy.right_sizing
        }
        self._share_forms = {
            policy.name: allowed_share_forms(policy.right_sizing) for policy in policies.policies if policy.right_sizing
        }
        self._needs = Counter[UnitNeed]()
        self._kept = Counter[str]()
        self._kept_needs = Counter[UnitNeed]()
        self._cpu, self._memory = Counter[UnitNeed](), Counter[UnitNeed]()
        self._counted = Counter[UnitNeed]()
        self._allocated = Counter[str]()
        self._held = Counter[int]()
        self._sets: list[WaitingCardSet] = []
        self._waiting_whole = Counter[str]()
        self._waiting_needs = Counter[tuple[tuple[UnitNeed, int], ...]]()
        self._waiting = self._elsewhere = self._resized = 0

    def demand(self) -> LayoutDemand:
        """Return the sums, with whole cards kept for waiting pods that need several on one node.

        Those that no node has free now get their cards together or none, if a node has enough that running pods do
        not keep, other such pods counted; else they cannot be served. Pods with the fewest possible nodes come first,
        and get nodes that the fewest others may use.
        """
        nodes, needs = dict(self._nodes), Counter(self._needs)
        held, reserved, waiting = Counter(self._held), Counter[int](), Counter(self._waiting_needs)
        kept = Counter(self._kept_needs)
        possible_nodes = self._possible_nodes()
        for each in sorted(self._sets, key=lambda each: (len(possible_nodes[each]), -each.gpus)):
            possible = possible_nodes[each]
            free = {index: nodes[index].layouts.count(WHOLE_CARD) - held[index] for index in possible}
            later = {
                index: len(nodes[index].layouts) - self._nodes[index].kept_whole - reserved[index] for index in possible
            }
            if (index := self._smallest_node(free, each.gpus)) is not None:
                held[index] += each.gpus
                nodes[index] = nodes[index]._replace(kept_whole=nodes[index].kept_whole + each.gpus)
                kept[each.need] += each.gpus
            elif (index := self._smallest_node(later, each.gpus)) is not None:
                needs[each.need] += each.gpus
                waiting[(each.need, each.gpus),] += 1
            else:
                impossible = each.need._replace(units=(), together=1, nodes=0)
                needs[impossible] += each.gpus
                waiting[(impossible, each.gpus),] += 1
                continue
            reserved[index] += each.gpus
        return LayoutDemand(
            tuple(nodes.values()),
            needs,
            self._kept,
            self._allocated,
            self._waiting,
            self._elsewhere,
            waiting_whole=self._waiting_whole,
            waiting=waiting,
            resized_pods=self._resized,
            quotas=self._quotas.quotas(kept),
            host_use={
                need: HostUse(self._cpu[need] // units, self._memory[need] // units)
                for need, units in self._counted.items()
            },
        )

    def _possible_nodes(self) -> dict[WaitingCardSet, list[int]]:
        """Return the nodes with enough cards that running pods do not keep, those first that the fewest others need."""
        possible = {each: self._large_enough(each) for each in set(self._sets)}
        users = Counter(index for each in self._sets for index in possible[each])
        for need, requests in self._needs.items():
            users.update(dict.fromkeys(bit_positions(need.nodes), requests))
        return {
            each: sorted(some, key=lambda index: (users[index], self._nodes[index].node))
            for each, some in possible.items()
        }

    def _large_enough(self, cards: WaitingCardSet) -> list[int]:
        nodes = ((index, self._nodes.get(index)) for index in bit_positions(cards.nodes))
        return [index for index, node in nodes if node and len(node.layouts) - node.kept_whole >= cards.gpus]

    def _smallest_node(self, cards: Mapping[int, int], gpus: int) -> int | None:
        """Return the first node with the fewest cards that are enough."""
        return min((index for index, count in cards.items() if count >= gpus), key=cards.__getitem__, default=None)

    def add(self, result: CheckResult) -> None:
        """Add an audited pod."""
        units = _requested_units(result)
        if not units or result.pod_details is None:
            return
        if result.node:
            index = self._fleet.by_name.get(result.node, -1)
            if index in self._nodes:
                self._add_running(result, index, units)
            else:
                self._elsewhere += 1
        elif not result.decision.denials:
            self._add_pending(result, self._feasible_nodes(result), units)

    def _add_running(self, result: CheckResult, index: int, units: Mapping[str, int]) -> None:
        node = self._nodes[index]
        units, cards = _units_on_node(units, node), node.layouts.count(WHOLE_CARD)
        usable = self._feasible_nodes(result) & self._by_product[node.product] or 1 << index
        allocated = min(units.get(WHOLE_GPU, 0), max(0, cards - self._held[index]))  # a failed card is not advertised
        self._allocated.update({node.product: allocated} if allocated else {})
        self._held[index] += units.get(WHOLE_GPU, 0)
        needs = self._needs_on_nodes(result, usable, units)
        kept = Counter({need: count for need, count in needs.items() if need.origin is RequestOrigin.WHOLE})
        staying = min(kept.total(), cards - node.kept_whole)
        drain = _drain_limit(result) if node.drain == NO_DRAIN_LIMIT else node.drain
        self._quotas.add(result)
        self._kept_needs.update(kept)
        self._nodes[index] = node._replace(pods=node.pods + 1, kept_whole=node.kept_whole + staying, drain=drain)
        if staying:
            self._kept[_reason_to_keep(result.decision)] += staying
        self._needs.update(needs - kept)
        self._resized += any(need.origin is RequestOrigin.RIGHT_SIZED for need in needs)
        self._record_pod(result, PodNeed(result.workload, True, needs, kept))

    def _add_pending(self, result: CheckResult, nodes: int, units: Mapping[str, int]) -> None:
        if nodes and not self._products(nodes):
            self._elsewhere += 1
            self._record_pod(result, PodNeed(result.workload, False, {}))
            return
        self._waiting += 1
        self._quotas.add(result)
        needs = self._needs_on_nodes(result, nodes, units)
        if not nodes and WHOLE_GPU in units:
            needs[self._need(result, (), RequestOrigin.WHOLE, nodes)] += units[WHOLE_GPU]
        self._record_pod(result, PodNeed(result.workload, False, needs))
        whole = {need: count for need, count in needs.items() if need.origin is RequestOrigin.WHOLE}
        reason = _reason_to_keep(result.decision) if whole else ""
        self._waiting_whole.update({reason: sum(whole.values())} if whole else {})
        sets = {need: count for need, count in whole.items() if count > 1}
        self._sets += [WaitingCardSet(need, count, nodes, reason) for need, count in sets.items()]
        others = needs - Counter(sets)
        self._needs.update(others)
        self._waiting_needs.update([tuple(sorted(others.items()))] if not sets else [])

    def _record_pod(self, result: CheckResult, need: PodNeed) -> None:
        self.pods[result.namespace, result.name] = need
        use, units = result.decision.pending_use, sum(need.needs.values())
        for each, count in need.needs.items():
            self._counted[each] += count
            self._cpu[each] += use.cpu_milli * count // units
            self._memory[each] += use.memory * count // units

    def needs_if_created(self, result: CheckResult) -> Counter[UnitNeed]:
        """Return the units that a pod without a node would need, whether or not the policies admit it."""
        return self._needs_on_nodes(result, self._feasible_nodes(result), _requested_units(result))

    def _feasible_nodes(self, result: CheckResult) -> int:
        """Return the mask of the nodes that a new pod may use today or with another layout."""
        nodes = _feasible_nodes(result)
        if nodes not in self._without_copies:
            originals = {self._copies.get(index, index) for index in bit_positions(nodes)}
            self._without_copies[nodes] = sum(1 << index for index in originals)
        return self._without_copies[nodes]

    def _products(self, nodes: int) -> list[str]:
        return sorted(product for product, having in self._by_product.items() if nodes & having)

    def _needs_on_nodes(self, result: CheckResult, nodes: int, units: Mapping[str, int]) -> Counter[UnitNeed]:
        """Return what a pod needs of some nodes: what the policies would give it, else what it requests."""
        products = self._products(nodes)
        if found := self._right_sized_units(result, products):
            return Counter({self._need(result, found, RequestOrigin.RIGHT_SIZED, nodes): 1})
        needs = Counter[UnitNeed]()
        if products and WHOLE_GPU in units:
            cards, count = [CardUnit(product, "") for product in products], units[WHOLE_GPU]
            needs[self._need(result, cards, RequestOrigin.WHOLE, nodes)._replace(together=max(1, count))] += count
        for name, count in units.items():
            resource = parse_gpu_resource(name)
            if resource and resource.mig and not resource.shared:
                large = self._nodes_with_slices(nodes, resource.profile, count)
                possible = [CardUnit(product, resource.profile) for product in self._products(large)]
                needs[self._need(result, possible, RequestOrigin.SLICE, large)] += count
            elif share_of(name):
                possible = [CardUnit(product, profile) for product in products for profile in _larger_shares(name)]
                needs[self._need(result, possible, RequestOrigin.SHARE, nodes)] += count
            elif resource and resource.shared:
                possible = [unit for product in products for unit in self._shares_by_name(result, name, product, nodes)]
                needs[self._need(result, possible, RequestOrigin.SHARE, nodes)] += count
        return needs

    def _nodes_with_slices(self, nodes: int, profile: str, count: int) -> int:
        """Return the mask of those of some nodes whose cards can have so many slices of a profile together."""
        large = 0
        for product in self._products(nodes):
            cards = -(-count // most) if (most := most_slices(product, profile)) else 0
            large |= self._nodes_with_cards(product, cards) if cards else 0
        return nodes & large

    def _nodes_with_cards(self, product: str, cards: int) -> int:
        if cards not in self._large_nodes[product]:
            large = (node for node in self._nodes.values() if len(node.layouts) >= cards)
            self._large_nodes[product][cards] = nodes_by_product(large)[product]
        return self._large_nodes[product][cards]

    def _shares_by_name(self, result: CheckResult, name: str, product: str, nodes: int) -> Iterator[CardUnit]:
        """Yield the shares that serve a request of any: today's and larger ones, or half cards if there are none."""
        if name != SHARED_GPU:
            return
        layouts = (self._nodes[index].shared for index in bit_positions(nodes & self._by_product[product]))
        today = (share_of(profile) for layout in set(layouts) for profile, _ in layout)
        most: dict[GpuForm, int] = {}
        for form, replicas in filter(None, today):
            most[form] = max(replicas, most.get(form, 0))
        most = most or dict.fromkeys(self._forms_of_policies(result.decision.policies), 2)
        for count in range(max(most.values(), default=0), 1, -1):
            yield from (CardUnit(product, share_profile(form, count)) for form in most if count <= most[form])

    def _need(self, result: CheckResult, units: Iterable[CardUnit], origin: RequestOrigin, nodes: int) -> UnitNeed:
        """Return a need of units on some nodes: those of them that have cards of the units' products."""
        possible = tuple(units)
        having = union_masks(self._by_product[product] for product in {unit.product for unit in possible})
        namespace = result.namespace if self._by_namespace else ""
        quotas = self._quotas.keys(result, possible)
        return UnitNeed(possible, origin, namespace, nodes=nodes & having, quotas=quotas)

    def _right_sized_units(self, result: CheckResult, products: Sequence[str]) -> list[CardUnit]:
        """Return the units of some products that the policies would give a pod; none if it keeps its request."""
        outcome = result.decision.outcome
        if result.decision.denials or not isinstance(outcome, OfferChoice):
            return []
        most = CARD_MILLI - 10 * max(self._savings.get(name, 0) for name in result.decision.policies)
        form = outcome.offers[0].form
        forms = self._forms_of_policies(outcome.policy.split(", "), form)
        units = self._covering_slices if form is GpuForm.MIG else partial(self._covering_shares, forms)
        found = [
            unit
            for product in products
            for unit in units(product, outcome.need, most)
            if not self._quotas.escapes(result, unit_resource(unit))
        ]
        return [*found, *(CardUnit(product, "") for product in products)] if found else []

    def _forms_of_policies(self, names: Sequence[str], *chosen: GpuForm) -> list[GpuForm]:
        """Return the forms of shares that some policies allow, also those that are chosen."""
        allowed = [self._share_forms[name] for name in names if name in self._share_forms]
        forms = dict.fromkeys((*(allowed[0] if allowed else ()), *chosen))
        return [form for form in forms if form in chosen or all(form in each for each in allowed)]

    def _covering_slices(self, product: str, need: GpuNeed, most: int) -> Iterator[CardUnit]:
        offers = (offer for offer in self._fleet.offers if offer.form is GpuForm.MIG and offer.product == product)
        profiles = dict.fromkeys(offer.profile for offer in offers if _serves(offer, need, most))
        return (CardUnit(product, profile) for profile in profiles)

    def _covering_shares(self, forms: Sequence[GpuForm], product: str, need: GpuNeed, most: int) -> Iterator[CardUnit]:
        """Yield the shares of some forms that cover a need in memory and duty, those of the most replicas first."""
        whole = (offer for offer in self._fleet.offers if offer.form is GpuForm.WHOLE and offer.product == product)
        memory = min((offer.memory_mib or 0 for offer in whole), default=0)
        replicas = min(MOST_REPLICAS, memory // max(1, need.memory_mib), _replicas_by_duty(need.compute_milli))
        shares = (CardUnit(product, share_profile(form, count)) for count in range(replicas, 1, -1) for form in forms)
        return (share for share in shares if share.milli <= most)


def _replicas_by_duty(compute_milli: int | None) -> int:
    return CARD_MILLI // max(1, compute_milli) if compute_milli is not None else MOST_REPLICAS_OF_UNKNOWN_COMPUTE


def _units_on_node(units: Mapping[str, int], node: NodeLayout) -> Mapping[str, int]:
    """Return units by name, with those of shared cards by the profile of their share."""
    if node.shared == WHOLE_CARD:
        return units
    [(profile, _)] = node.shared
    return {profile if name in SHARED_NAMES else name: count for name, count in units.items()}


def _larger_shares(profile: str) -> Iterator[str]:
    """Yield a share and those of fewer replicas."""
    share = share_of(profile)
    return (share_profile(share[0], count) for count in range(share[1], 1, -1)) if share else iter(())


def _requested_units(result: CheckResult) -> Mapping[str, int]:
    """Return the GPUs that a pod requests; an amount that is no whole number counts as zero and is left out."""
    units = result.decision.requested_units
    return {name: count for name, count in units.items() if count > 0 and parse_gpu_resource(name)}


def _drain_limit(result: CheckResult) -> DrainLimit:
    """Return the limit of a drain that leaves a running pod, which keeps its GPUs."""
    details = result.pod_details
    if details is None:
        return NO_DRAIN_LIMIT
    if details.unevaluated_reason is UnevaluatedReason.STATIC:
        return DrainLimit("a drain does not evict static pods, and one has GPUs")
    if details.workload.startswith("DaemonSet/"):
        workload = f"{result.namespace}/{details.workload.removeprefix('DaemonSet/')}"
        return DrainLimit(f"a drain does not evict pods of DaemonSet {workload}, and one has GPUs")
    return NO_DRAIN_LIMIT


def _feasible_nodes(result: CheckResult) -> int:
    """Return the mask of the nodes that a new pod may use, with what the policies would give it.

    These are not only those of the smallest slice: a pod gets a larger one of another product where that is used up.
    """
    nodes, outcome = result.pod_details.feasible_nodes if result.pod_details else 0, result.decision.outcome
    return nodes & outcome.selected if isinstance(outcome, OfferChoice) and not result.decision.denials else nodes


def _reason_to_keep(decision: Decision) -> str:
    """Return the stable word for why a running pod keeps its whole cards."""
    if decision.denials:
        return DENIED
    return KeepReason.NO_OFFER.value if isinstance(decision.outcome, OfferChoice) else decision.outcome.reason.value


def _serves(offer: GpuOffer, need: GpuNeed, most: int) -> bool:
    return offer.gpu_milli <= min(most, CARD_MILLI - 1) and covers_need(offer, need)


@lru_cache(maxsize=1024)
def most_slices(product: str, profile: str) -> int:
    """Return the most slices of a profile that one card of a product can have.

    >>> most_slices("NVIDIA-A100-SXM4-80GB", "3g.40gb"), most_slices("NVIDIA-L4", "3g.40gb")
    (2, 0)
    """
    geometry = mig_geometry(product)
    return max(dict(layout).get(profile, 0) for layout in legal_layouts(geometry)) if geometry else 0


def enforced_policies(results: Iterable[CheckResult], policies: PolicySet) -> list[Json]:
    """Return the policies that would right-size audited pods if they were enforced, with their right-sizing enforced.

    Policies in a gradual rollout keep it: it enforces them by and by.
    """
    decisions = (each.decision for each in results)
    choices = (each.outcome for each in decisions if not each.applied and not each.denials)
    names = {name for each in choices if isinstance(each, OfferChoice) for name in each.policy.split(", ")}
    written = {each.name: each.document.data for each in policies.sources if each.document.data["kind"] == "GPUPolicy"}
    return [
        _with_enforced_sections(written[each.name], _tolerates(each.injection))
        for each in policies.policies
        if each.name in names and each.right_sizing and each.right_sizing.mode is not PolicyMode.ENFORCE
    ]


def _tolerates(injection: InjectionRules | None) -> bool:
    return injection is not None and (injection.tolerations_auto or bool(injection.tolerations))


def _with_enforced_sections(policy: Json, injection: bool) -> Json:
    """Return a policy with its right-sizing enforced, and perhaps its injection."""
    spec = dict(policy["spec"])
    for section in ("rightSizing", "injection") if injection else ("rightSizing",):
        spec[section] = {**spec[section], "mode": "enforce"}
    metadata = {key: policy["metadata"][key] for key in WRITTEN_METADATA if key in policy["metadata"]}
    return {"apiVersion": policy["apiVersion"], "kind": policy["kind"], "metadata": metadata, "spec": spec}
