"""Step 4, fit: the smallest offer that covers a pod's need, or why the pod keeps its request.

A rewrite must do no harm. Only a pod that needs one whole GPU at a time is made smaller; all its containers get the
same resource. The offer must exist, be free now, be eligible by the changed pod, pass every LimitRange and quota that
the original passes, be counted as strictly, match no further policy and cause no denial. Where this is not certain,
nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.claimed_gpus import units_of_resource
from webhook.engine.class_fit import all_class_offers, explain_no_class, reason_against_class, with_class_offers
from webhook.engine.cuda import offers_sure_to_run
from webhook.engine.demand import covers_need, has_enough_memory, unmodeled_constraints
from webhook.engine.feasible_nodes import FeasibleNodes, has_large_enough_node
from webhook.engine.gpu_requests import GpuRequest, requests_gpu_share
from webhook.engine.guarding.environment import DRIVER_CAPABILITIES, parse_capabilities
from webhook.engine.limitrange.findings import rejection_reason
from webhook.engine.limits import allows_resource
from webhook.engine.match import newly_matching_policy
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.memory_takers import memory_fraction_changes, reason_by_framework
from webhook.engine.misfits import MAX_GROUP_NAME, describe_exclusion, describe_lack, describe_stopped_groups
from webhook.engine.mutate import offer_affinity, substitute_resource
from webhook.engine.pod_context import GpuPodContext, PodContext
from webhook.engine.projected_pod import project_feasible_nodes, project_new_nodes, project_unsized_pod
from webhook.engine.queued_templates import GroupGrowth, reason_by_queue
from webhook.engine.quota.charges import (
    escapes_quota,
    escapes_quota_by_class,
    find_full_quota,
    find_full_quota_by_class,
)
from webhook.errors import abbreviate_names, shorten_text
from webhook.model.batch import KAI, KAI_POOL_LABEL, is_charged_as_one_gpu, queueing_sign, sign_of_system
from webhook.model.decisions import NO_RIGHT_SIZING, GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import FullCapacityAction, GpuForm, PolicyMode
from webhook.model.filters.volume_rejections import VolumeProblem
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.node_groups import NodeGroup, growing_groups, stopped_groups
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.node_masks import bit_positions, exclude_nodes, union_masks
from webhook.model.offers import GpuOffer
from webhook.model.quantity import parse_whole_number
from webhook.model.volcano_queues import VolcanoJobQueue
from webhook.policy.policy_set import RightSizingRules

_GRAPHICS_CAPABILITIES = frozenset({"display", "graphics", "video"})

_VOLUME_REASONS = {
    VolumeProblem.UNKNOWN: KeepReason.VOLUME_UNKNOWN,
    VolumeProblem.UNBOUND: KeepReason.VOLUME_UNBOUND,
    VolumeProblem.IN_USE: KeepReason.VOLUME_IN_USE,
    VolumeProblem.SHARED: KeepReason.VOLUME_SHARED,
}

_NO_COVERING_OFFER = frozenset(
    {
        KeepReason.NO_OFFER,
        KeepReason.NEED_TOO_LARGE,
        KeepReason.SIZE_UNKNOWN,
        KeepReason.FORM_NOT_ALLOWED,
        KeepReason.SAVING_TOO_SMALL,
    }
)
"""Reasons that no allowed offer covers the need. A device class may cover it that pods cannot get."""

_REMOVED_BY_NEW_NODE = frozenset(
    {
        KeepReason.NO_FREE_CAPACITY,
        KeepReason.NO_FLAVOR_NODES,
        KeepReason.NO_OFFER,
        KeepReason.UNREACHABLE,
        KeepReason.HOST_PORT,
        KeepReason.VOLUME_UNREACHABLE,
        KeepReason.ANTI_AFFINITY,
        KeepReason.TOPOLOGY_SPREAD,
    }
)
"""Reasons that no longer hold once a new node has joined."""

_NO_LIVE_SLICE = frozenset({KeepReason.NO_OFFER, KeepReason.NO_FREE_CAPACITY})
"""Reasons that only a slice or share of a live node is missing."""

_LACKS_OF_NEW_NODE = frozenset(
    {KeepReason.UNREACHABLE, KeepReason.NO_FREE_CAPACITY, KeepReason.VOLUME_UNREACHABLE, KeepReason.HOST_PORT}
)
"""Reasons that a new node is not one for a pod, with a detail that names what it lacks."""

MAX_NAMES = 3
"""Products or resources that a reason names before it counts the rest."""


class OfferSearch(NamedTuple):
    """The search for an offer that a pod gets instead of whole GPUs.

    Attributes:
        feasible: Live nodes, or the new nodes of groups.
        growth: Set for a template if they are new nodes.
    """

    context: GpuPodContext
    need: GpuNeed
    right_sizing: CombinedRightSizing
    feasible: FeasibleNodes
    growth: GroupGrowth | None = None


def choose_offer(context: PodContext, need: GpuNeed) -> OfferChoice | KeepRequest:
    """Choose what a pod requests instead of whole GPUs, or return why it keeps them."""
    right_sizing = context.policies.right_sizing
    if right_sizing is None or not isinstance(context, GpuPodContext):
        return NO_RIGHT_SIZING
    feasible = project_feasible_nodes(context, right_sizing.rule.mode)
    waits = right_sizing.rule.when_full is FullCapacityAction.WAIT
    constraint = "" if waits else next(unmodeled_constraints(feasible.pod, context.view), "")
    if constraint:
        return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, constraint)
    if context.view.is_stale:
        return KeepRequest(KeepReason.STALE_VIEW)
    if not waits and (blocker := feasible.volumes.blocker) is not None:
        return KeepRequest(_VOLUME_REASONS[blocker.problem], blocker.detail)
    choice = _smallest_choice(OfferSearch(context, need, right_sizing, feasible))
    if isinstance(choice, KeepRequest):
        choice = _choice_by_second_pass(context, need, right_sizing, choice)
    queued = context.request.queued
    if right_sizing.rule.when_full is FullCapacityAction.GROW and _may_grow(context):
        choice = _allow_growth(context, need, right_sizing, feasible, choice)
    if isinstance(choice, OfferChoice) and queued is not None and queued.queue.kept is not None:
        return queued.queue.kept
    if isinstance(choice, KeepRequest) and choice.reason in _NO_COVERING_OFFER and context.view.classes:
        return _explain_by_classes(context, need, right_sizing.rule, choice)
    return choice


def _may_grow(context: GpuPodContext) -> bool:
    """Return whether a group can grow for a pod, or for the pods of a template.

    It is not known when a queued pod needs a node. Volcano starts no Job before there is room for it.
    """
    queued = context.request.queued
    return not queueing_sign(context.pod) if queued is None else not isinstance(queued.queue, VolcanoJobQueue)


def _choice_by_second_pass(
    context: GpuPodContext, need: GpuNeed, right_sizing: CombinedRightSizing, kept: KeepRequest
) -> OfferChoice | KeepRequest:
    """Predict the choice of a second admission pass for a pod that keeps its request in the first.

    By then the pod has the node affinity that policies require of unsized pods. Without this, the second pass would
    choose an offer and change the output of the first. There is no choice if a requirement that is ignored for whole
    cards would apply to the chosen nodes.
    """
    feasible = project_unsized_pod(context, right_sizing.rule.mode)
    if feasible is None:
        return kept
    choice = _smallest_choice(OfferSearch(context, need, right_sizing, feasible))
    if isinstance(choice, KeepRequest):
        return kept
    nodes = union_masks(offer.nodes for offer in choice.offers)
    return (
        kept if any(nodes & feasible.matching_nodes(ignored) for ignored in feasible.ignored_requirements) else choice
    )


def _allow_growth(
    context: GpuPodContext,
    need: GpuNeed,
    right_sizing: CombinedRightSizing,
    feasible: FeasibleNodes,
    choice: OfferChoice | KeepRequest,
) -> OfferChoice | KeepRequest:
    """Choose an offer that a new node of a node group has, if none is free now.

    Node labels that need not be required are dropped, because the template of a new node may lack them.
    """
    if isinstance(choice, KeepRequest) and choice.reason not in _REMOVED_BY_NEW_NODE:
        return choice
    new = _new_nodes(context, right_sizing)
    if isinstance(choice, OfferChoice):
        any_node = new is not None and not feasible.ties() and _is_suitable_everywhere(context, choice, feasible, new)
        return _without_selectors(choice) if any_node else choice
    grown = None if new is None else _choose_on_new_nodes(context, need, right_sizing, feasible, new)
    if isinstance(grown, OfferChoice):
        return grown
    no_slice = choice.reason in _NO_LIVE_SLICE
    stopped = _explain_stopped_groups(context, need, right_sizing, feasible) if no_slice else None
    return stopped or _explain_no_growth(context, right_sizing, new, choice, grown)


def _new_nodes(
    context: GpuPodContext, right_sizing: CombinedRightSizing, *, stopped: bool = False
) -> FeasibleNodes | None:
    """Return the new nodes that could take the pod, of groups that may grow or of all others; None if unknown."""
    new = project_new_nodes(context, right_sizing.rule.mode, stopped=stopped)
    if new is not None and right_sizing.accounting:
        new.exclude_lacking(~new.view.fleet.accounting_nodes, f"has no {ACCOUNTING_RESOURCE}")
    return new


def _choose_on_new_nodes(
    context: GpuPodContext,
    need: GpuNeed,
    right_sizing: CombinedRightSizing,
    feasible: FeasibleNodes,
    new: FeasibleNodes,
) -> OfferChoice | KeepRequest | None:
    """Choose an offer of new nodes, or return why there is none; None if it does not suit all nodes, or none."""
    fleet, queued = context.view.fleet, context.request.queued
    groups = growing_groups(fleet, context.view.group_sources)
    growth = None if queued is None else GroupGrowth(feasible, groups)
    grown = _smallest_choice(OfferSearch(context, need, right_sizing, new, growth))
    if isinstance(grown, KeepRequest):
        return grown
    if not _is_suitable_everywhere(context, grown, feasible, new):
        return None
    group = ""
    if queued is None:
        suitable = _suitable_groups(grown, new, groups)
        if not suitable:
            return None
        if not _has_nodes_left(suitable, grown.resource, context):
            names = abbreviate_names([shorten_text(each.name, MAX_GROUP_NAME) for each in suitable])
            taken = f"waiting pods take all nodes that node group {names} may add"
            return KeepRequest(KeepReason.NO_GROWTH, f"{grown.resource}: {taken}")
        group = suitable[0].name
    live = fleet.nodes_advertising(grown.resource) & context.feasible.selected
    offers = tuple([replace(offer, nodes=live) for offer in grown.offers])
    return _without_selectors(replace(grown, offers=offers, selected=context.feasible.selected, group=group))


def _suitable_groups(choice: OfferChoice, new: FeasibleNodes, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Return the groups whose new node can take the pod with its choice."""
    offering = bit_positions(union_masks(offer.nodes for offer in choice.offers) & new.nodes)
    return [groups[index] for index in offering if new.has_free_node(choice.resource, 1, 1 << index)]


def _explain_stopped_groups(
    context: GpuPodContext, need: GpuNeed, right_sizing: CombinedRightSizing, feasible: FeasibleNodes
) -> KeepRequest | None:
    """Return that a group would add a node with an offer for the pod, and why it cannot grow; None if none would."""
    groups = stopped_groups(context.view.fleet, context.view.group_sources)
    new = _new_nodes(context, right_sizing, stopped=True) if groups else None
    if new is None:
        return None
    unlimited = [replace(each, nodes_left=None) for each in groups]
    growth = None if context.request.queued is None else GroupGrowth(feasible, unlimited)
    choice = _smallest_choice(OfferSearch(context, need, right_sizing, new, growth))
    if isinstance(choice, KeepRequest) or not _is_suitable_everywhere(context, choice, feasible, new):
        return None
    suitable = _suitable_groups(choice, new, groups)
    return KeepRequest(KeepReason.NO_GROWTH, describe_stopped_groups(choice.resource, suitable)) if suitable else None


def _explain_no_growth(
    context: GpuPodContext,
    right_sizing: CombinedRightSizing,
    new: FeasibleNodes | None,
    choice: KeepRequest,
    grown: KeepRequest | None,
) -> KeepRequest:
    """Return why a pod keeps its request: what a new node lacks, if that alone is in the way.

    Args:
        new: The new nodes; None if it is not known which may take the pod.
        choice: The reason on live nodes.
        grown: The reason on the new nodes; None if it is not known.
    """
    if grown is not None and grown.reason is KeepReason.NO_GROWTH:
        return grown
    if choice.reason not in _NO_LIVE_SLICE:
        return choice
    if new is not None and context.request.queued is None:
        if grown is not None and grown.reason in _LACKS_OF_NEW_NODE:
            return KeepRequest(KeepReason.NO_GROWTH, grown.detail)
        rule = right_sizing.rule
        for offer in new.view.fleet.offers:
            if offer.memory_mib is None and offer.form in rule.forms and offer.form is not GpuForm.WHOLE:
                name = new.view.fleet.nodes[next(bit_positions(offer.nodes))].name
                lack = f"{offer.resource}: {name} lacks {PRODUCT_LABEL}, so the memory of a slice is unknown"
                return KeepRequest(KeepReason.NO_GROWTH, lack)
    if choice.reason is KeepReason.NO_FREE_CAPACITY:
        return KeepRequest(KeepReason.NO_GROWTH, choice.detail)
    if grown is None or grown.reason is KeepReason.NO_OFFER:
        return choice
    return grown


def _has_nodes_left(groups: Sequence[NodeGroup], resource: str, context: GpuPodContext) -> bool:
    """Return whether groups may still grow for a pod when all pods that wait for a resource have got theirs."""
    if any(group.nodes_left is None for group in groups):
        return True
    units = [parse_whole_number(group.new_node.status.allocatable.get(resource, 0)) or 0 for group in groups]
    most = sum((group.nodes_left or 0) * each for group, each in zip(groups, units, strict=True))
    return context.view.has_fewer_pending(resource, most)


def _is_suitable_everywhere(
    context: GpuPodContext, choice: OfferChoice, feasible: FeasibleNodes, new: FeasibleNodes
) -> bool:
    """Return whether every offer with the name of a choice is suitable, on live nodes and on new ones."""
    chosen, need = choice.offers[0], choice.need
    live_offers, new_offers = (nodes.view.fleet.by_resource.get(choice.resource, ()) for nodes in (feasible, new))
    offers = (*live_offers, *new_offers)
    return (
        all(covers_need(offer, need) for offer in offers)
        and all((offer.form, offer.isolation) == (chosen.form, chosen.isolation) for offer in offers)
        and reason_by_framework(context, offers, need.memory_mib, patch=False) is None
        and offers_sure_to_run(context, live_offers, feasible) == live_offers
        and offers_sure_to_run(context, new_offers, new) == new_offers
    )


def _without_selectors(choice: OfferChoice) -> OfferChoice:
    return replace(choice, offers=tuple([replace(offer, selector=()) for offer in choice.offers]))


def _smallest_choice(search: OfferSearch) -> OfferChoice | KeepRequest:
    """Try every group of interchangeable offers that covers the need, in order of preference."""
    covering, search = _covering_offers(search)
    kept: KeepRequest | None = None
    for offers in _interchangeable_offers(covering):
        found = _try_offers(search, offers)
        if isinstance(found, OfferChoice):
            return found
        kept = kept or found
    return kept or _explain_offers(search.context.view.fleet.offers, search.need, search.right_sizing.rule)


def _covering_offers(search: OfferSearch) -> tuple[list[GpuOffer], OfferSearch]:
    """Return the allowed offers that cover the need, in order of preference, and the need in words about these."""
    need, rule = search.need, search.right_sizing.rule
    allowed = search.feasible.view.fleet.offers_by_form(*rule.allowed_shares)
    if search.feasible.view.classes:
        allowed = with_class_offers(search.context, allowed, rule)
    with_enough_memory = [offer for offer in allowed if has_enough_memory(offer, need)]
    if need.compute_milli is None:
        return with_enough_memory, search
    covering = [offer for offer in with_enough_memory if covers_need(offer, need)]
    if covering[:1] != with_enough_memory[:1]:
        need = replace(need, words=f"{need.words}, and {need.compute_milli / 10:g}% of a GPU's compute")
    return covering, search._replace(need=need)


def _try_offers(search: OfferSearch, offers: tuple[GpuOffer, ...]) -> OfferChoice | KeepRequest:
    """Return the choice of interchangeable offers, of those that surely run the pod's image; or why not."""
    context, need, right_sizing, feasible, _ = search
    if (reason := _reason_against_offers(search, offers)) is not None:
        return reason
    runnable = offers_sure_to_run(context, offers, feasible)
    if not runnable:
        return KeepRequest(KeepReason.DRIVER, offers[0].resource)
    if len(runnable) < len(offers) and (reason := _reason_against_offers(search, runnable)) is not None:
        return reason
    patch = right_sizing.rule.patch_fractions
    changes = memory_fraction_changes(context, runnable, need.memory_mib) if patch else ()
    return OfferChoice(runnable[0].resource, runnable, need, right_sizing.policy, feasible.selected, changes)


def _interchangeable_offers(offers: list[GpuOffer]) -> Iterator[tuple[GpuOffer, ...]]:
    """Group offers of one name and form that one node affinity selects; in the given order."""
    groups: dict[object, list[GpuOffer]] = {}
    for each in offers:
        groups.setdefault((each.resource, each.form, _selector_group(each)), []).append(each)
    return map(tuple, groups.values())


def _selector_group(offer: GpuOffer) -> object:
    """Return what offers of one node affinity have in common: the label key, or all their labels."""
    return offer.selector[0][0] if len(offer.selector) == 1 else offer.selector


def _explain_by_classes(
    context: GpuPodContext, need: GpuNeed, rule: RightSizingRules, kept: KeepRequest
) -> KeepRequest:
    """Return why a pod gets no device of a class that covers its need; without such a class, why no offer covers it."""
    if (reason := explain_no_class(context, need, rule)) is not None:
        return reason
    covering = [offer for offer in all_class_offers(context.view) if covers_need(offer, need)]
    return _explain_offers((*context.view.fleet.offers, *covering), need, rule) if covering else kept


def _explain_offers(offers: Sequence[GpuOffer], need: GpuNeed, rule: RightSizingRules) -> KeepRequest:
    """Return why none of some offers is chosen, whether it is free or not."""
    covering = [offer for offer in offers if covers_need(offer, need)]
    saving = [offer for offer in covering if offer.form in rule.forms and offer.isolation >= rule.isolation]
    if saving:
        best = min(saving, key=lambda offer: (offer.gpu_milli, rule.forms.index(offer.form)))
        required = max(rule.min_saving_percent, 1)
        saved = f"{max(0, 1000 - best.gpu_milli) / 10:g}% of a GPU"
        detail = f"{need.words}, {best.resource} saves {saved}, the policy requires {required}% or more"
        return KeepRequest(KeepReason.SAVING_TOO_SMALL, detail)
    if any(offer.form is not GpuForm.WHOLE for offer in covering):
        return KeepRequest(KeepReason.FORM_NOT_ALLOWED, need.words)
    unsized = [offer for offer in offers if offer.memory_mib is None]
    if unsized and (not covering or any(offer.form is not GpuForm.WHOLE for offer in unsized)):
        names = tuple(dict.fromkeys(offer.product or offer.resource for offer in unsized))
        detail = f"{need.words}, memory unknown: {abbreviate_names(names, MAX_NAMES)}"
        return KeepRequest(KeepReason.SIZE_UNKNOWN, detail)
    return KeepRequest(KeepReason.NEED_TOO_LARGE if offers and not covering else KeepReason.NO_OFFER, need.words)


def _reason_against_offers(search: OfferSearch, offers: tuple[GpuOffer, ...]) -> KeepRequest | None:
    """Return the first reason against interchangeable offers: of nodes, of the pod, of its namespace, of policies."""
    context, need, right_sizing, feasible, growth = search
    resource, nodes, queued = offers[0].resource, union_masks([offer.nodes for offer in offers]), context.request.queued
    may_wait = right_sizing.rule.when_full is FullCapacityAction.WAIT
    kai = sign_of_system(context.pod, KAI)
    reason = _reason_by_kai(kai, resource, nodes, feasible.view.fleet) if kai else None
    reason = reason or (
        reason_by_queue(queued, offers, feasible, growth, may_wait=may_wait)
        if queued is not None
        else _reason_by_nodes(offers, nodes, feasible, wait=may_wait)
    )
    reason = reason or _reason_by_names(offers, nodes, feasible)
    if reason is not None:
        return reason
    if offers[0].form is GpuForm.MIG and may_need_graphics(context.gpu_requests.requests):
        return KeepRequest(KeepReason.GRAPHICS, resource)
    reason = reason_by_framework(context, offers, need.memory_mib, patch=right_sizing.rule.patch_fractions)
    if reason is not None or resource == WHOLE_GPU:
        return reason
    if context.view.is_class_offer(resource) and (found := reason_against_class(context, resource, right_sizing)):
        return found
    return _reason_in_namespace(context, resource, right_sizing) or _reason_by_policies(context, resource, right_sizing)


def _reason_by_kai(sign: str, resource: str, nodes: int, fleet: Fleet) -> KeepRequest | None:
    """Return why KAI would charge a pod more for a resource, or use other nodes for it."""
    if not is_charged_as_one_gpu(resource):
        return KeepRequest(KeepReason.NO_EQUAL_CHARGE, f"{resource}, {sign}")
    if nodes & fleet.nodes_with_label(KAI_POOL_LABEL):
        return KeepRequest(KeepReason.SCHEDULER_SHARD, f"nodes with {resource} have label {KAI_POOL_LABEL}")
    return None


def _reason_by_names(offers: tuple[GpuOffer, ...], nodes: int, feasible: FeasibleNodes) -> KeepRequest | None:
    """Return why the name of offers would be understood as something else."""
    resource, fleet = offers[0].resource, feasible.view.fleet
    # Would the added node affinity also select nodes where the name stands for another size?
    others = exclude_nodes(fleet.nodes_advertising(resource) & feasible.selected, nodes)
    if others and others & feasible.matching_nodes(offer_affinity(offers)):
        return KeepRequest(KeepReason.AMBIGUOUS_NAME, resource)
    return None


def _reason_by_nodes(
    offers: tuple[GpuOffer, ...], nodes: int, feasible: FeasibleNodes, *, wait: bool
) -> KeepRequest | None:
    """Return why no node of a mask may take the pod with an offer, now unless it may wait."""
    resource, eligible = offers[0].resource, nodes & feasible.nodes
    if not eligible:
        excluded = nodes & feasible.exclusion.nodes & feasible.selected & feasible.tolerated
        if excluded:
            return KeepRequest(KeepReason.ANTI_AFFINITY, resource)
        return KeepRequest(KeepReason.UNREACHABLE, describe_exclusion(resource, nodes, feasible))
    if not eligible & feasible.volumes.lasting_nodes:
        return KeepRequest(KeepReason.VOLUME_UNREACHABLE, _describe_volumes(resource, feasible))
    return None if wait else _reason_by_capacity(feasible, offers, eligible)


def _reason_by_capacity(feasible: FeasibleNodes, offers: tuple[GpuOffer, ...], eligible: int) -> KeepRequest | None:
    """Return why no eligible node is sure to be free for the pod with an offer.

    Its ties to other pods must allow the node before and after the change, because spread counts the nodes that the
    pod's node affinity selects.
    """
    resource, selected = offers[0].resource, feasible.matching_nodes(offer_affinity(offers))
    now, changed = feasible.tied_nodes(feasible.selected, selected)
    if now is None or changed is None:
        return KeepRequest(KeepReason.UNMODELED_CONSTRAINT, "affinity or spread between pods")
    allowed = eligible & now.allowed & changed.allowed
    if now.is_first or not eligible & now.matching:
        return KeepRequest(KeepReason.POD_AFFINITY, resource)
    if not allowed:
        excluded = not eligible & now.matching & ~now.excluded
        return KeepRequest(KeepReason.ANTI_AFFINITY if excluded else KeepReason.TOPOLOGY_SPREAD, resource)
    if feasible.has_free_node(resource, 1, allowed, changed):
        return None
    if not allowed & feasible.volumes.nodes:
        return KeepRequest(KeepReason.VOLUME_UNREACHABLE, _describe_volumes(resource, feasible))
    if not feasible.with_free_ports(allowed):
        return KeepRequest(KeepReason.HOST_PORT, resource)
    if changed.on_nodes or changed.blocked:
        return KeepRequest(KeepReason.TOPOLOGY_SPREAD if feasible.ties().spread else KeepReason.ANTI_AFFINITY, resource)
    lack = describe_lack(resource, allowed, feasible)
    may_wait = has_large_enough_node(feasible.view.fleet, feasible.amounts(), allowed)
    return KeepRequest(KeepReason.NO_FREE_CAPACITY if may_wait else KeepReason.UNREACHABLE, lack)


def _describe_volumes(resource: str, feasible: FeasibleNodes) -> str:
    """Return what excludes the nodes with a resource that the pod's volumes exclude."""
    found = dict.fromkeys(each.detail for each in feasible.volumes.rejections)
    return f"{resource}: {'; '.join(list(found)[:MAX_NAMES])}" if found else resource


def _reason_in_namespace(
    context: GpuPodContext, resource: str, right_sizing: CombinedRightSizing
) -> KeepRequest | None:
    ranges, quotas, fleet = context.namespace.ranges, context.namespace.quotas, context.view.fleet
    if ranges:
        limits, requests = substitute_resource(
            context.gpu_requests, resource, zero=WHOLE_GPU in context.namespace.limited_resources
        )
        reason = rejection_reason(context.pod, ranges, limits, requests)
        if reason:
            return KeepRequest(KeepReason.LIMIT_RANGE, reason)
    if not quotas:
        return None
    holds_at_most = partial(context.view.holds_at_most, context.request.namespace, resource)
    if context.view.is_class_offer(resource):
        if escapes_quota_by_class(quotas, context.pod, resource, context.view):
            return KeepRequest(KeepReason.QUOTA_NOT_COVERING, resource)
        full_quota = find_full_quota_by_class(quotas, context.pod, resource, context.view, holds_at_most)
        return KeepRequest(KeepReason.QUOTA_EXCEEDED, f"{resource} in quota {full_quota}") if full_quota else None
    accounted = right_sizing.accounting and (
        right_sizing.accounting_ignored or fleet.all_advertise_accounting(fleet.nodes_advertising(resource))
    )
    if escapes_quota(quotas, context.pod, WHOLE_GPU, resource, accounted=ACCOUNTING_RESOURCE if accounted else ""):
        return KeepRequest(KeepReason.QUOTA_NOT_COVERING, resource)
    units = max(context.gpu_requests.totals.values(), default=1)
    full_quota = find_full_quota(quotas, context.pod, resource, holds_at_most, units)
    return KeepRequest(KeepReason.QUOTA_EXCEEDED, f"{resource} in quota {full_quota}") if full_quota else None


def _reason_by_policies(context: GpuPodContext, resource: str, right_sizing: CombinedRightSizing) -> KeepRequest | None:
    """Return which policy would reject a resource, or match it but not the current request."""
    names: tuple[str, ...] = (resource,)
    if resource in context.view.devices.class_by_resource:
        names = (resource, *units_of_resource(resource, context.view, context.request.namespace))
    if not all(allows_resource(limits, name) for limits in right_sizing.limits for name in names):
        return KeepRequest(KeepReason.LIMITS, resource)
    if context.pod.spec.share_process_namespace:
        denying = [
            name
            for (mode, name), section in context.policies.security
            if mode is PolicyMode.ENFORCE and "sharedProcessNamespace" in section.deny
        ]
        if denying and requests_gpu_share({resource: 1}, context.view.fleet):
            return KeepRequest(KeepReason.SHARED_PROCESSES, f"policy {denying[0]}")
    new = newly_matching_policy(context, names)
    if new is None:
        return None
    matches = "may match" if new.match.conditions else "matches"
    return KeepRequest(KeepReason.NEW_POLICY, f"policy {new.name} {matches} {resource} and not {WHOLE_GPU}")


def may_need_graphics(requests: Sequence[GpuRequest]) -> bool:
    """Return whether a container with a GPU may name graphics, display or video among its driver capabilities.

    MIG instances have no graphics, and the smallest of some cards no video engine (NVIDIA's MIG user guide). "all" does
    not count, because images set it by habit. A value that cannot be read may contain anything.
    """
    return any(
        variable.value_from is not None
        or "$(" in variable.value
        or not _GRAPHICS_CAPABILITIES.isdisjoint(parse_capabilities(variable.value))
        for one in requests
        for variable in one.container.env
        if variable.name == DRIVER_CAPABILITIES
    )
