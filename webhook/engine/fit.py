"""Step 4: the least offer that covers a pod's need, or why the request stays as it is.

The rules are those of a rewrite that can do no harm: only a pod that needs one whole GPU at any time
shrinks; all containers that ask for it get the same form; the target must exist, must be free now, must be reachable
by the pod as it stands, must pass every LimitRange and quota that the original passes, must be counted as strictly,
and must bring no policy and no refusal to speak that did not. Where this cannot be known, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from webhook.engine.cuda import offers_sure_to_run
from webhook.engine.demand import NO_EVIDENCE, DemandInput, estimate_need, has_demand_evidence
from webhook.engine.eligibility import ineligible_reason, unmodelled_constraint
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import GpuRequest, requests_gpu_share
from webhook.engine.guarding.environment import DRIVER_CAPABILITIES, parse_capabilities
from webhook.engine.limitrange import rejection_reason
from webhook.engine.limits import allows_resource
from webhook.engine.match import newly_matching_policy
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.pod_context import PodContext
from webhook.engine.projected_pod import project_feasible_nodes, project_without_fit
from webhook.engine.quota import escapes_quota, find_full_quota
from webhook.engine.rightsize import offer_affinity, substitute_resource
from webhook.model.decisions import GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import GpuForm, IsolationLevel, PolicyMode
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.node_masks import union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pods import EnvVar
from webhook.model.workloads import workload_of
from webhook.policy.policy_set import RightSizingRules

_GRAPHICS_CAPABILITIES = frozenset({"display", "graphics", "video"})


UNREADABLE_NEED = KeepRequest(KeepReason.NO_EVIDENCE, "what it declares cannot be read")
MAX_PRODUCT_NAMES = 3
"""Products that a reason names before it counts."""


def choose_offer(case: PodContext, sizing: CombinedRightSizing) -> OfferChoice | KeepRequest:
    """Choose what a pod's containers ask for instead of whole GPUs, or say why they do not."""
    kept = ineligible_reason(case)
    if kept is not None:
        return kept
    if case.declared_need.errors:
        return UNREADABLE_NEED
    if not has_demand_evidence(case.declared_need, case.usage, sizing.rule):
        return NO_EVIDENCE
    need = estimate_need(_demand_input(case, sizing.rule), case.declared_need, case.usage)
    if isinstance(need, KeepRequest):
        return need
    reach = project_feasible_nodes(case, sizing.rule.mode)
    tie = "" if sizing.rule.wait_when_full else unmodelled_constraint(reach.pod)
    if tie:
        return KeepRequest(KeepReason.UNMODELLED_CONSTRAINT, tie)
    if not case.view.current:
        return KeepRequest(KeepReason.STALE_VIEW)
    outcome = _smallest_choice(case, need, sizing, reach)
    return outcome if isinstance(outcome, OfferChoice) else _choice_by_second_pass(case, need, sizing, outcome)


def _choice_by_second_pass(
    case: PodContext, need: GpuNeed, sizing: CombinedRightSizing, kept: KeepRequest
) -> OfferChoice | KeepRequest:
    """What a second look would give to a pod that keeps its request by the first, once it is held to nodes of its own.

    Nothing where a requirement that does not count for whole cards would come to count for what is given.
    """
    reach = project_without_fit(case, sizing.rule.mode)
    outcome = kept if reach is None else _smallest_choice(case, need, sizing, reach)
    if reach is None or isinstance(outcome, KeepRequest):
        return kept
    nodes = union_masks(offer.nodes for offer in outcome.offers)
    return kept if any(nodes & reach.matching_nodes(rules) for rules in reach.ignored_requirements) else outcome


def _demand_input(case: PodContext, rule: RightSizingRules) -> DemandInput:
    fleet = case.view.fleet
    return DemandInput(
        case.gpu_requests.requests,
        case.request.namespace,
        workload_of(case.pod),
        rule,
        lambda: fleet.memory_sizes(*_allowed_shares(rule)),
    )


def _smallest_choice(
    case: PodContext, need: GpuNeed, sizing: CombinedRightSizing, reach: FeasibleNodes
) -> OfferChoice | KeepRequest:
    """Try every resource name whose offers cover the need, the best first."""
    need = _mention_compute(need, sizing.rule, reach)
    first: KeepRequest | None = None
    for offers in _candidate_offers(need, sizing.rule, reach):
        outcome = _choice_of_offers(case, offers, need, sizing, reach)
        if isinstance(outcome, OfferChoice):
            return outcome
        first = first or outcome
    return first or _explain_no_offer(need, sizing.rule, reach)


def _choice_of_offers(
    case: PodContext, offers: tuple[GpuOffer, ...], need: GpuNeed, sizing: CombinedRightSizing, reach: FeasibleNodes
) -> OfferChoice | KeepRequest:
    """Those of the offers that are sure to run the pod's images, or why none of them can be given."""
    refused = _reason_against_offers(case, offers, sizing, reach)
    if refused is not None:
        return refused
    sure = offers_sure_to_run(case, offers, reach)
    if not sure:
        return KeepRequest(KeepReason.DRIVER, offers[0].resource)
    if len(sure) < len(offers):
        refused = _reason_against_offers(case, sure, sizing, reach)
    return refused or OfferChoice(sure[0].resource, sure, need, sizing.policy, reach.selected)


def _mention_compute(need: GpuNeed, rule: RightSizingRules, reach: FeasibleNodes) -> GpuNeed:
    """The need in words that name its compute too, where that rules out what its memory would have been given."""
    if need.compute_milli is None:
        return need
    roomy = next((offer for offer in _allowed_offers(rule, reach) if _has_enough_memory(offer, need)), None)
    if roomy is None or _covers_need(roomy, need):
        return need
    return replace(need, words=f"{need.words}, and {need.compute_milli / 10:g}% of a GPU's compute")


def _candidate_offers(need: GpuNeed, rule: RightSizingRules, reach: FeasibleNodes) -> Iterator[tuple[GpuOffer, ...]]:
    """Offers that cover the need, in order of preference; those that one node affinity reaches come together."""
    given = [offer for offer in _allowed_offers(rule, reach) if _covers_need(offer, need)]
    while given:
        first = given[0]
        yield tuple([offer for offer in given if _are_interchangeable(first, offer)])
        given = [offer for offer in given if not _are_interchangeable(first, offer)]


def _are_interchangeable(one: GpuOffer, other: GpuOffer) -> bool:
    same = one.resource == other.resource and one.form is other.form
    return same and (one is other or _selector_group(one) == _selector_group(other))


def _allowed_offers(rule: RightSizingRules, reach: FeasibleNodes) -> Iterable[GpuOffer]:
    """The offers that a rule may give to anybody, the preferred form first, the least first in each."""
    return reach.view.fleet.offers_by_form(*_allowed_shares(rule))


def _allowed_shares(rule: RightSizingRules) -> tuple[tuple[GpuForm, ...], IsolationLevel, int]:
    """Forms, least isolation and largest share of a card that a rule may give."""
    return rule.forms, rule.isolation, min(999, 1000 - 10 * rule.min_saving_percent)


def _selector_group(offer: GpuOffer) -> object:
    """What offers must share to be named by one set of expressions: a label key, or all their labels."""
    return offer.selector[0][0] if len(offer.selector) == 1 else offer.selector


def _covers_need(offer: GpuOffer, need: GpuNeed) -> bool:
    return _has_enough_memory(offer, need) and (need.compute_milli is None or offer.compute_milli >= need.compute_milli)


def _has_enough_memory(offer: GpuOffer, need: GpuNeed) -> bool:
    return offer.memory_mib is not None and offer.memory_mib >= need.memory_mib


def _explain_no_offer(need: GpuNeed, rule: RightSizingRules, reach: FeasibleNodes) -> KeepRequest:
    """Why no offer can be given at all: the nearest that something came to covering the need."""
    fleet = reach.view.fleet
    able = [offer for offer in fleet.offers if _covers_need(offer, need)]
    saving = [offer for offer in fleet.offers_by_form(rule.forms, rule.isolation, 1000) if _covers_need(offer, need)]
    if saving:
        return KeepRequest(KeepReason.SAVING_TOO_SMALL, f"{need.words}, {_explain_small_saving(saving, rule)}")
    if any(offer.form is not GpuForm.WHOLE for offer in able):
        return KeepRequest(KeepReason.FORM_NOT_ALLOWED, need.words)
    unsized = [offer for offer in fleet.offers if offer.memory_mib is None]
    if unsized and (not able or any(offer.form is not GpuForm.WHOLE for offer in unsized)):
        return KeepRequest(KeepReason.SIZE_UNKNOWN, f"{need.words}, nothing said of {_product_names(unsized)}")
    return KeepRequest(KeepReason.NEED_TOO_LARGE if fleet.offers and not able else KeepReason.NO_OFFER, need.words)


def _explain_small_saving(offers: Sequence[GpuOffer], rule: RightSizingRules) -> str:
    best = min(offers, key=lambda offer: offer.gpu_milli)
    saved = max(0, 1000 - best.gpu_milli) / 10
    return f"{best.resource} saves {saved:g}% of a GPU, the policy asks for {max(rule.min_saving_percent, 1)}% or more"


def _product_names(offers: Sequence[GpuOffer]) -> str:
    names = tuple(dict.fromkeys(offer.product or offer.resource for offer in offers))
    return ", ".join(names[:MAX_PRODUCT_NAMES]) + (
        f" and {len(names) - MAX_PRODUCT_NAMES} more" if len(names) > MAX_PRODUCT_NAMES else ""
    )


def _reason_against_offers(
    case: PodContext, offers: tuple[GpuOffer, ...], sizing: CombinedRightSizing, reach: FeasibleNodes
) -> KeepRequest | None:
    """Why these offers cannot be given; None if nothing stands in the way."""
    resource, nodes = offers[0].resource, union_masks(offer.nodes for offer in offers)
    within = nodes & reach.nodes
    if not within:
        return KeepRequest(KeepReason.UNREACHABLE, resource)
    if not sizing.rule.wait_when_full and not reach.has_room(resource, 1, within):
        return KeepRequest(KeepReason.NO_FREE_CAPACITY, resource)
    if _is_ambiguous_name(offers, nodes, reach):
        return KeepRequest(KeepReason.AMBIGUOUS_NAME, resource)
    if offers[0].form is GpuForm.MIG and may_need_graphics(case.gpu_requests.requests):
        return KeepRequest(KeepReason.GRAPHICS, resource)
    if resource == WHOLE_GPU:
        return None
    return _reason_in_namespace(case, resource, sizing)


def _is_ambiguous_name(offers: tuple[GpuOffer, ...], nodes: int, reach: FeasibleNodes) -> bool:
    """Would the affinity beside the request also reach nodes where the name stands for another shape?"""
    others = reach.view.fleet.nodes_advertising(offers[0].resource) & reach.selected & ~nodes
    return bool(others) and bool(others & reach.matching_nodes(offer_affinity(offers)))


def _reason_in_namespace(case: PodContext, resource: str, sizing: CombinedRightSizing) -> KeepRequest | None:
    view, namespace = case.view, case.request.namespace
    ranges = view.ranges(namespace)
    if ranges:
        limits, requests = substitute_resource(
            case.gpu_requests, resource, zero=WHOLE_GPU in view.limited_resources(namespace)
        )
        reason = rejection_reason(case.pod, ranges, limits, requests)
        if reason:
            return KeepRequest(KeepReason.LIMIT_RANGE, reason)
    quotas = view.quotas(namespace)
    accounted = ACCOUNTING_RESOURCE if quotas and _carries_accounting(resource, sizing, view.fleet) else ""
    if quotas and escapes_quota(quotas, case.pod, WHOLE_GPU, resource, accounted=accounted):
        return KeepRequest(KeepReason.QUOTA_NOT_COVERING, resource)
    full_one = find_full_quota(quotas, case.pod, resource) if quotas else ""
    if full_one:
        return KeepRequest(KeepReason.QUOTA_EXCEEDED, f"{resource} in quota {full_one}")
    if not all(allows_resource(limits, resource) for limits in sizing.limits):
        return KeepRequest(KeepReason.LIMITS, resource)
    return _reason_by_policies(case, resource)


def _carries_accounting(resource: str, sizing: CombinedRightSizing, fleet: Fleet) -> bool:
    """Will a pod that is given a resource carry the accounting resource too, wherever it may come to?"""
    return sizing.accounting and (
        sizing.accounting_ignored or fleet.all_advertise_accounting(fleet.nodes_advertising(resource))
    )


def _reason_by_policies(case: PodContext, resource: str) -> KeepRequest | None:
    """What policies would come to say of the smaller request, and do not say of the request as it is."""
    refusing = _policy_denying_shared_processes(case)
    if refusing and requests_gpu_share({resource: 1}, case.view.fleet):
        return KeepRequest(KeepReason.SHARED_PROCESSES, f"policy {refusing}")
    new = newly_matching_policy(case, resource)
    if new is None:
        return None
    speaks = "may speak" if new.match.conditions else "speaks"
    return KeepRequest(KeepReason.NEW_POLICY, f"policy {new.name} {speaks} about {resource} and not about {WHOLE_GPU}")


def _policy_denying_shared_processes(case: PodContext) -> str:
    """The policy that refuses this pod on a share because its containers share their processes; "" where none does."""
    if not case.pod.spec.share_process_namespace:
        return ""
    voices = (voice for voice, section in case.policies.security if "sharedProcessNamespace" in section.deny)
    return next((name for mode, name in voices if mode is PolicyMode.ENFORCE), "")


def may_need_graphics(asks: Iterable[GpuRequest]) -> bool:
    """May a container that asks for a GPU name graphics, display or video among its driver capabilities?

    "all" says nothing: images write it by habit. What is held elsewhere, and cannot be read, may be anything.
    """
    return any(
        _may_name_graphics(variable)
        for ask in asks
        for variable in ask.container.env
        if variable.name == DRIVER_CAPABILITIES
    )


def _may_name_graphics(variable: EnvVar) -> bool:
    if variable.value_from is not None or "$(" in variable.value:
        return True
    return not _GRAPHICS_CAPABILITIES.isdisjoint(parse_capabilities(variable.value))
