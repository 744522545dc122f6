"""Device classes in step 4, fit: the offers of classes that a pod may get, and why it gets none.

A pod gets a device of a class by the name of an extended resource. Only Kubernetes 1.36 and newer serves such names,
and only the default scheduler; queues and Karpenter do not know what they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

from webhook.engine.claimed_gpus import units_of_resource
from webhook.engine.demand import covers_need
from webhook.engine.gpu_requests import declared_need_of
from webhook.engine.match import candidates_with
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.pod_context import GpuPodContext, PodContext
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.errors import abbreviate_names
from webhook.model.batch import queueing_sign
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.dra.class_offers import NO_CLASS_OFFERS, ClassObstacle, ClassOffers, UnusableDevices, class_offers
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.fleet import DEVICES_BY_NAME_MINOR, Fleet
from webhook.model.gpu_fractions import DEFAULT_SCHEDULERS
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, WHOLE_GPU
from webhook.model.offers import GpuOffer, is_allowed_share
from webhook.policy.policy_set import RightSizingRules

_OBSTACLE_REASONS = {
    ClassObstacle.SELECTORS: KeepReason.UNGUARDED_CLASS,
    ClassObstacle.DEVICE_PLUGIN: KeepReason.DEVICE_PLUGIN_ON_NODES,
    ClassObstacle.KUBELET: KeepReason.KUBERNETES_TOO_OLD,
    ClassObstacle.MIXED: KeepReason.MIXED_CLASS,
}


def with_class_offers(
    context: GpuPodContext, offers: tuple[GpuOffer, ...], rule: RightSizingRules
) -> tuple[GpuOffer, ...]:
    """Return offers and those of device classes, in the order of the forms, the smallest share of a card first."""
    if _reason_against_classes(context) is not None:
        return offers
    known = context.view.class_offers()
    return known.allowed_with(offers, rule.allowed_shares) if known.by_resource else offers


def explain_no_class(context: GpuPodContext, need: GpuNeed, rule: RightSizingRules) -> KeepRequest | None:
    """Return why a pod gets no device of a class that covers its need and that the policy allows; None without one."""

    def is_suitable(offer: GpuOffer) -> bool:
        return covers_need(offer, need) and is_allowed_share(offer, rule.allowed_shares)

    known = _known_offers(context.view)
    usable = [one.offer.resource for one in known.by_resource.values() if one.offer.nodes and is_suitable(one.offer)]
    unusable = [each for each in known.unusable if is_suitable(each.offer)]
    names = [*usable, *[each.device_class for each in unusable]]
    if names and (reason := _reason_against_classes(context)) is not None:
        return KeepRequest(reason.reason, f"{names[0]}, {reason.detail}" if reason.detail else names[0])
    return _describe_obstacle(unusable[0], context.view.fleet) if unusable else None


def _describe_obstacle(unusable: UnusableDevices, fleet: Fleet) -> KeepRequest:
    nodes = abbreviate_names(fleet.names_of(unusable.nodes))
    detail = f"{unusable.offer.profile} of {unusable.device_class} on {nodes}"
    return KeepRequest(_OBSTACLE_REASONS[unusable.obstacle], detail)


def explain_request_by_class(context: PodContext, choice: OfferChoice | KeepRequest) -> list[SectionFinding]:
    """Report a declared need of a pod that requests a GPU by the name of a class, and the smallest class for it."""
    right_sizing, view = context.policies.right_sizing, context.view
    if right_sizing is None or isinstance(choice, OfferChoice) or choice.reason is not KeepReason.REQUESTED_BY_CLASS:
        return []
    declared = declared_need_of(context.pod, view.fleet)
    if declared.memory_mib is None:
        return []
    need = GpuNeed(declared.memory_mib, declared.compute_milli, EvidenceSource.DECLARED, declared.text)
    offers = [each.offer for each in view.class_offers().by_resource.values() if each.offer.nodes]
    smaller = next((one.resource for one in offers if covers_need(one, need)), "")
    fix = f"Request {smaller}, which covers {need.words}." if smaller else choice.reason.fix
    path, message = context.claimed.fields[WHOLE_GPU], f"not right-sized: {choice}"
    finding = PolicyFinding("GPU-R103", path, message, fix, PolicyMode.WARN, choice.reason.value)
    return [((right_sizing.rule.mode, right_sizing.policy), finding)]


def all_class_offers(view: ClusterView) -> Sequence[GpuOffer]:
    """Return the offers of device classes, also those that no pod can get."""
    known = _known_offers(view)
    return [*[each.offer for each in known.by_resource.values()], *[each.offer for each in known.unusable]]


def _known_offers(view: ClusterView) -> ClassOffers:
    """Return the offers of classes, also where no pod can get them."""
    return class_offers(view.devices, view.fleet) if view.classes and view.device_pools() else NO_CLASS_OFFERS


def _reason_against_classes(context: GpuPodContext) -> KeepRequest | None:
    """Return why a pod gets no device of any class by name: of the cluster, of what starts it, or of its containers."""
    view, pod = context.view, context.pod
    if view.group_sources.pools:
        return KeepRequest(KeepReason.KARPENTER)
    if view.api_minor < DEVICES_BY_NAME_MINOR:
        version = f"the API server is 1.{view.api_minor}" if view.api_minor else "the version is unknown"
        return KeepRequest(KeepReason.KUBERNETES_TOO_OLD, version)
    if not view.devices.knows_claims:
        return KeepRequest(KeepReason.STALE_VIEW, "ResourceClaims cannot be read")
    if context.request.queued is not None or queueing_sign(pod):
        return KeepRequest(KeepReason.NO_CLASS_FOR_POD, "a queue starts it")
    if pod.spec.scheduler_name not in DEFAULT_SCHEDULERS:
        return KeepRequest(KeepReason.NO_CLASS_FOR_POD, f"scheduler {pod.spec.scheduler_name} starts it")
    requests = context.gpu_requests.requests
    if len(requests) != 1 or requests[0].path[1] != "containers":
        return KeepRequest(KeepReason.NO_CLASS_FOR_POD, "an init container requests a GPU")
    if context.claimed.classes:
        return KeepRequest(KeepReason.NO_CLASS_FOR_POD, f"it also requests {next(iter(context.claimed.classes))}")
    return None


def reason_against_class(
    context: GpuPodContext, resource: str, right_sizing: CombinedRightSizing
) -> KeepRequest | None:
    """Return what would no longer count or limit a pod that requests a device class instead of a GPU."""
    if right_sizing.accounting and not right_sizing.accounting_ignored:
        return KeepRequest(KeepReason.QUOTA_NOT_COVERING, f"{resource} is not counted by policies")
    names = (resource, *units_of_resource(resource, context.view, context.request.namespace))
    after = candidates_with(context, names)
    for index, policy in enumerate(context.policy_set.policies):
        lost = context.candidates & ~after & 1 << index
        if lost and policy.rejecting_mode is PolicyMode.ENFORCE:
            return KeepRequest(KeepReason.NEW_POLICY, f"policy {policy.name} matches {WHOLE_GPU} and not {resource}")
    denying = (name for (_, name), section in context.policies.security if "resourceClaims" in section.deny)
    if resource.startswith(DEVICE_CLASS_PREFIX) and (name := next(denying, "")):
        return KeepRequest(KeepReason.LIMITS, f"policy {name} denies {resource}")
    return None
