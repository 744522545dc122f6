"""Step 4: the least offer that covers a pod's need, or why the request stays as it is.

The rules are those of a rewrite that can do no harm: only a pod that needs one whole GPU at any time
shrinks; all containers that ask for it get the same form; the target must exist, must be free now, must be reachable
by the pod as it stands, must pass every LimitRange and quota that the original passes, must be counted as strictly,
and must bring no policy and no refusal to speak that did not. Where this cannot be known, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from webhook.engine.case import Case
from webhook.engine.cuda_landing import sure_to_run
from webhook.engine.demand import NO_EVIDENCE, Sought, has_evidence, need_of
from webhook.engine.foreseen import foreseen, left_as_it_is
from webhook.engine.graphics import may_ask_graphics
from webhook.engine.limitrange import obstacle
from webhook.engine.limits import allows
from webhook.engine.newcomers import newcomer
from webhook.engine.quota import escapes, full
from webhook.engine.reach import Reach
from webhook.engine.rewriting import affinity_of, replaced
from webhook.engine.rules import Sizing
from webhook.engine.shares import asks_share
from webhook.engine.staying import stays
from webhook.engine.ties import tied_by
from webhook.model.decisions import Fit, Keep, Need, Why
from webhook.model.fleet import Fleet
from webhook.model.masks import union
from webhook.model.modes import Form, Isolation, Mode
from webhook.model.offers import Offer
from webhook.model.resources import ACCOUNTING, WHOLE_GPU
from webhook.model.workloads import workload_of
from webhook.policy.compiled import RightSizing

UNREADABLE = Keep(Why.NO_EVIDENCE, "what it declares cannot be read")
MOST_NAMES = 3
"""Products that a reason names before it counts."""


def fit(case: Case, sizing: Sizing) -> Fit | Keep:
    """Choose what a pod's containers ask for instead of whole GPUs, or say why they do not."""
    kept = stays(case)
    if kept is not None:
        return kept
    if case.declared.faults:
        return UNREADABLE
    if not has_evidence(case.declared, case.usage, sizing.rule):
        return NO_EVIDENCE
    need = need_of(_sought(case, sizing.rule), case.declared, case.usage)
    if isinstance(need, Keep):
        return need
    reach = foreseen(case, sizing.rule.mode)
    tie = "" if sizing.rule.wait_when_full else tied_by(reach.pod)
    if tie:
        return Keep(Why.TIED, tie)
    if not case.view.current:
        return Keep(Why.NOT_CURRENT)
    outcome = _least(case, need, sizing, reach)
    return outcome if isinstance(outcome, Fit) else _by_second_look(case, need, sizing, outcome)


def _by_second_look(case: Case, need: Need, sizing: Sizing, kept: Keep) -> Fit | Keep:
    """What a second look would give to a pod that keeps its request by the first, once it is held to nodes of its own.

    Nothing where a requirement that does not count for whole cards would come to count for what is given.
    """
    reach = left_as_it_is(case, sizing.rule.mode)
    outcome = kept if reach is None else _least(case, need, sizing, reach)
    if reach is None or isinstance(outcome, Keep):
        return kept
    nodes = union(offer.nodes for offer in outcome.offers)
    return kept if any(nodes & reach.narrowed(rules) for rules in reach.passed_over) else outcome


def _sought(case: Case, rule: RightSizing) -> Sought:
    fleet = case.view.fleet
    return Sought(
        case.asked.asks, case.request.namespace, workload_of(case.pod), rule, lambda: fleet.sizes(*_what(rule))
    )


def _least(case: Case, need: Need, sizing: Sizing, reach: Reach) -> Fit | Keep:
    """Try every resource name whose offers cover the need, the best first."""
    need = _with_compute(need, sizing.rule, reach)
    first: Keep | None = None
    for offers in _candidates(need, sizing.rule, reach):
        outcome = _outcome(case, offers, need, sizing, reach)
        if isinstance(outcome, Fit):
            return outcome
        first = first or outcome
    return first or _none_covers(need, sizing.rule, reach)


def _outcome(case: Case, offers: tuple[Offer, ...], need: Need, sizing: Sizing, reach: Reach) -> Fit | Keep:
    """Those of the offers that are sure to run the pod's images, or why none of them can be given."""
    refused = _refused(case, offers, sizing, reach)
    if refused is not None:
        return refused
    sure = sure_to_run(case, offers, reach)
    if not sure:
        return Keep(Why.DRIVER, offers[0].resource)
    if len(sure) < len(offers):
        refused = _refused(case, sure, sizing, reach)
    return refused or Fit(sure[0].resource, sure, need, sizing.policy, reach.selected)


def _with_compute(need: Need, rule: RightSizing, reach: Reach) -> Need:
    """The need in words that name its compute too, where that rules out what its memory would have been given."""
    if need.compute_milli is None:
        return need
    roomy = next((offer for offer in _given(rule, reach) if _holds(offer, need)), None)
    if roomy is None or _covers(roomy, need):
        return need
    return replace(need, words=f"{need.words}, and {need.compute_milli / 10:g}% of a GPU's compute")


def _candidates(need: Need, rule: RightSizing, reach: Reach) -> Iterator[tuple[Offer, ...]]:
    """Offers that cover the need, in order of preference; those that one node affinity reaches come together."""
    given = [offer for offer in _given(rule, reach) if _covers(offer, need)]
    while given:
        first = given[0]
        yield tuple([offer for offer in given if _together(first, offer)])
        given = [offer for offer in given if not _together(first, offer)]


def _together(one: Offer, other: Offer) -> bool:
    same = one.resource == other.resource and one.form is other.form
    return same and (one is other or _reached_by(one) == _reached_by(other))


def _given(rule: RightSizing, reach: Reach) -> Iterable[Offer]:
    """The offers that a rule may give to anybody, the preferred form first, the least first in each."""
    return reach.view.fleet.sharing(*_what(rule))


def _what(rule: RightSizing) -> tuple[tuple[Form, ...], Isolation, int]:
    """Forms, least isolation and largest share of a card that a rule may give."""
    return rule.forms, rule.isolation, min(999, 1000 - 10 * rule.min_saving_percent)


def _reached_by(offer: Offer) -> object:
    """What offers must share to be named by one set of expressions: a label key, or all their labels."""
    return offer.selector[0][0] if len(offer.selector) == 1 else offer.selector


def _covers(offer: Offer, need: Need) -> bool:
    return _holds(offer, need) and (need.compute_milli is None or offer.compute_milli >= need.compute_milli)


def _holds(offer: Offer, need: Need) -> bool:
    return offer.memory_mib is not None and offer.memory_mib >= need.memory_mib


def _none_covers(need: Need, rule: RightSizing, reach: Reach) -> Keep:
    """Why no offer can be given at all: the nearest that something came to covering the need."""
    fleet = reach.view.fleet
    able = [offer for offer in fleet.offers if _covers(offer, need)]
    saving = [offer for offer in fleet.sharing(rule.forms, rule.isolation, 1000) if _covers(offer, need)]
    if saving:
        return Keep(Why.SMALL_SAVING, f"{need.words}, {_too_little(saving, rule)}")
    if any(offer.form is not Form.WHOLE for offer in able):
        return Keep(Why.FORM, need.words)
    unsized = [offer for offer in fleet.offers if offer.memory_mib is None]
    if unsized and (not able or any(offer.form is not Form.WHOLE for offer in unsized)):
        return Keep(Why.SIZE_UNKNOWN, f"{need.words}, nothing said of {_named(unsized)}")
    return Keep(Why.TOO_LARGE if fleet.offers and not able else Why.NO_OFFER, need.words)


def _too_little(offers: Sequence[Offer], rule: RightSizing) -> str:
    best = min(offers, key=lambda offer: offer.gpu_milli)
    saved = max(0, 1000 - best.gpu_milli) / 10
    return f"{best.resource} saves {saved:g}% of a GPU, the policy asks for {max(rule.min_saving_percent, 1)}% or more"


def _named(offers: Sequence[Offer]) -> str:
    names = tuple(dict.fromkeys(offer.product or offer.resource for offer in offers))
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def _refused(case: Case, offers: tuple[Offer, ...], sizing: Sizing, reach: Reach) -> Keep | None:
    """Why these offers cannot be given; None if nothing stands in the way."""
    resource, nodes = offers[0].resource, union(offer.nodes for offer in offers)
    within = nodes & reach.nodes
    if not within:
        return Keep(Why.UNREACHABLE, resource)
    if not sizing.rule.wait_when_full and not reach.has_room(resource, 1, within):
        return Keep(Why.FULL, resource)
    if _is_ambiguous(offers, nodes, reach):
        return Keep(Why.AMBIGUOUS, resource)
    if offers[0].form is Form.MIG and may_ask_graphics(case.asked.asks):
        return Keep(Why.GRAPHICS, resource)
    if resource == WHOLE_GPU:
        return None
    return _against_the_rules(case, resource, sizing)


def _is_ambiguous(offers: tuple[Offer, ...], nodes: int, reach: Reach) -> bool:
    """Would the affinity beside the request also reach nodes where the name stands for another shape?"""
    others = reach.view.fleet.advertising(offers[0].resource) & reach.selected & ~nodes
    return bool(others) and bool(others & reach.narrowed(affinity_of(offers)))


def _against_the_rules(case: Case, resource: str, sizing: Sizing) -> Keep | None:
    view, namespace = case.view, case.request.namespace
    ranges = view.ranges(namespace)
    if ranges:
        limits, requests = replaced(case.asked, resource, zero=WHOLE_GPU in view.limited(namespace))
        reason = obstacle(case.pod, ranges, limits, requests)
        if reason:
            return Keep(Why.LIMIT_RANGE, reason)
    quotas = view.quotas(namespace)
    accounted = ACCOUNTING if quotas and _is_accounted(resource, sizing, view.fleet) else ""
    if quotas and escapes(quotas, case.pod, WHOLE_GPU, resource, accounted=accounted):
        return Keep(Why.QUOTA, resource)
    full_one = full(quotas, case.pod, resource) if quotas else ""
    if full_one:
        return Keep(Why.QUOTA_FULL, f"{resource} in quota {full_one}")
    if not all(allows(limits, resource) for limits in sizing.limits):
        return Keep(Why.LIMITS, resource)
    return _against_policies(case, resource)


def _is_accounted(resource: str, sizing: Sizing, fleet: Fleet) -> bool:
    """Will a pod that is given a resource carry the accounting resource too, wherever it may come to?"""
    return sizing.accounting and (sizing.ignored or fleet.all_take(fleet.advertising(resource)))


def _against_policies(case: Case, resource: str) -> Keep | None:
    """What policies would come to say of the smaller request, and do not say of the request as it is."""
    refusing = _refusing_processes(case)
    if refusing and asks_share({resource: 1}, case.view.fleet):
        return Keep(Why.PROCESSES, f"policy {refusing}")
    new = newcomer(case, resource)
    if new is None:
        return None
    speaks = "may speak" if new.match.conditions else "speaks"
    return Keep(Why.NEW_POLICY, f"policy {new.name} {speaks} about {resource} and not about {WHOLE_GPU}")


def _refusing_processes(case: Case) -> str:
    """The policy that refuses this pod on a share because its containers share their processes; "" where none does."""
    if not case.pod.spec.share_process_namespace:
        return ""
    voices = (voice for voice, section in case.rules.security if "sharedProcessNamespace" in section.deny)
    return next((name for mode, name in voices if mode is Mode.ENFORCE), "")
