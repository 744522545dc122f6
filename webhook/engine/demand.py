"""Step 3, demand: the GPU memory and compute a pod needs, and the evidence; or why its request is kept.

Three kinds of evidence count, in the order of the policy: the pod's declaration, the observed usage of its workload,
and the policy's default, which never overrides observed usage. Without evidence nothing is made smaller.

A size is chosen by price x risk + allocated memory. The cost of allocated memory is the part that typical usage leaves
empty. The whole card is the largest size: it adds no risk to what the pod has today, and the request is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import msgspec

from webhook.engine.gpu_requests import NOTHING_DECLARED, DeclaredNeed, GpuRequest
from webhook.engine.memory_takers import CONSTANT_USAGE, framework_of
from webhook.engine.pod_context import GpuPodContext, PodContext
from webhook.model.annotations import KEEP_ANNOTATION, MIRROR_ANNOTATION
from webhook.model.batch import (
    KAI,
    KAI_POOL_LABEL,
    KUEUE,
    NO_SYSTEM,
    VOLCANO,
    QueueingSystem,
    gang_sign,
    queueing_sign,
)
from webhook.model.bounded_cache import request_cache
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import CLAIMED, NO_GPU_REQUEST, NO_RIGHT_SIZING, GpuNeed, KeepReason, KeepRequest
from webhook.model.dra.extended_resources import amounts_of_container
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.gpu_fractions import requested_fraction
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, WHOLE_GPU
from webhook.model.offers import GpuOffer
from webhook.model.pod_volumes import has_inline_disk
from webhook.model.pods import Container, ObjectMeta, Pod, is_daemon_pod
from webhook.model.quantity import format_mib, parse_whole_number
from webhook.model.schedulers import rules_of_scheduler
from webhook.model.usage import CERTAIN_PPM, ObservedUsage, UsageView
from webhook.model.volcano_queues import VOLCANO_GROUP, UnknownQueue
from webhook.model.workloads import workload_of
from webhook.policy.policy_set import RightSizingRules
from webhook.policy.workload_kinds import CHARGED_KINDS, GROUPS_BY_KIND, WORKLOAD_KINDS

NO_EVIDENCE = KeepRequest(KeepReason.NO_EVIDENCE)
UNREADABLE_NEED = KeepRequest(KeepReason.NO_EVIDENCE, "its declared need cannot be read")

_COST_UNIT = 1000 * CERTAIN_PPM
"""Unit of cost: thousandths of a pod-hour, times risk in ppm."""

SIZE_CACHE = 1024
"""Cached choices, for the pods of one workload that arrive one after another."""

FAR_ABOVE_PEAK = 2
"""A need of this many times the peak is explained. Smoothing adds less than that: the rest is the tail of the fleet."""


class DemandInput(msgspec.Struct, frozen=True, gc=False):
    """The inputs of one pod's estimate.

    Attributes:
        sizes: Returns the allowed sizes, MiB, ascending; called only where usage was observed.
    """

    requests: tuple[GpuRequest, ...]
    namespace: str
    workload: str
    rule: RightSizingRules
    sizes: Callable[[], tuple[int, ...]]
    declared: DeclaredNeed = NOTHING_DECLARED


def estimate_need(context: PodContext) -> GpuNeed | KeepRequest:
    """Return the GPU need of a pod, or why it keeps its request."""
    if not context.gpu_requests.requests:
        return _reason_by_claims(context)
    right_sizing = context.policies.right_sizing
    if right_sizing is None:
        return NO_RIGHT_SIZING
    if not isinstance(context, GpuPodContext):
        return KeepRequest(KeepReason.UPDATE)
    total = context.gpu_requests.totals.get(WHOLE_GPU)
    if total is None:
        return KeepRequest(KeepReason.NO_WHOLE_GPU)
    if (excluded := exclusion_reason(context)) is not None:
        return excluded
    if total > 1:
        return KeepRequest(KeepReason.MULTIPLE_GPUS)
    if sign := gang_sign(context.pod):
        return KeepRequest(KeepReason.GANG_MEMBER, sign)
    if context.request.unknown_parts:
        return KeepRequest(KeepReason.POD_UNKNOWN, context.request.unknown_parts)
    declared, usage, rule = context.declared_need, context.usage, right_sizing.rule
    if declared.errors:
        return UNREADABLE_NEED
    if declared.memory_mib is None and not usage.observed and rule.default_memory_mib is None:
        return NO_EVIDENCE
    requests, namespace, fleet = context.gpu_requests.requests, context.request.namespace, context.view.fleet

    def sizes() -> tuple[int, ...]:
        return fleet.memory_sizes(*rule.allowed_shares)

    return need_by_evidence(DemandInput(requests, namespace, workload_of(context.pod), rule, sizes, declared), usage)


def _reason_by_claims(context: PodContext) -> KeepRequest:
    """Return why a pod keeps its request that has no GPUs but those of claims and device classes, if any."""
    claimed = context.claimed
    if not claimed.units:
        unknown = _unknown_claims(context) if context.pod.spec.resource_claims else []
        return KeepRequest(KeepReason.UNKNOWN_CLAIM, ", ".join(unknown)) if unknown else NO_GPU_REQUEST
    if not any(claimed.classes.values()):
        return CLAIMED
    if WHOLE_GPU not in claimed.units:
        return KeepRequest(KeepReason.NO_WHOLE_GPU)
    resource = str(claimed.fields[WHOLE_GPU][-1])
    if resource not in claimed.classes:
        return CLAIMED
    if context.policies.right_sizing is None:
        return NO_RIGHT_SIZING
    opts_out = is_opted_out(context.pod.metadata)
    return KeepRequest(KeepReason.OPTED_OUT) if opts_out else KeepRequest(KeepReason.REQUESTED_BY_CLASS, resource)


def _unknown_claims(context: PodContext) -> list[str]:
    """Return the claims of a pod, by the names that it gives them, of which no claim or template is known."""
    known = context.view.namespace_claims(context.request.namespace)
    sources = [
        (one.name, one.resource_claim_name, one.resource_claim_template_name)
        for one in context.pod.spec.resource_claims
    ]
    return [name for name, claim, template in sources if known.spec_of(claim, template) is None]


def is_opted_out(metadata: ObjectMeta) -> bool:
    """Return whether an object opts out of right-sizing."""
    return metadata.annotations.get(KEEP_ANNOTATION, "false") != "false"


def exclusion_reason(context: GpuPodContext) -> KeepRequest | None:
    """Return why a pod is excluded from right-sizing, whatever its GPU count, for example by the keep annotation."""
    gpu_requests, injected = context.gpu_requests, context.limit_range_gpus
    if is_opted_out(context.pod.metadata):
        return KeepRequest(KeepReason.OPTED_OUT)
    if gpu_requests.errors:
        return KeepRequest(KeepReason.INVALID_AMOUNT)
    if injected.amounts and any(injected.contains(one.path, one.resource.name) for one in gpu_requests.requests):
        return KeepRequest(KeepReason.INJECTED)
    others = (*gpu_requests.unknown_resources, *[name for name, units in context.claimed.classes.items() if units])
    if len(gpu_requests.totals) > 1 or others:
        return KeepRequest(KeepReason.MIXED_RESOURCES, ", ".join((*gpu_requests.totals, *others)))
    pod, spec = context.pod, context.pod.spec
    if is_daemon_pod(pod):
        return KeepRequest(KeepReason.DAEMON_SET)
    if MIRROR_ANNOTATION in pod.metadata.annotations:
        return KeepRequest(KeepReason.MIRROR)
    if spec.node_name:
        return KeepRequest(KeepReason.BOUND)
    if spec.resource_claims:
        return KeepRequest(KeepReason.RESOURCE_CLAIMS)
    if fraction := requested_fraction(pod):
        return KeepRequest(KeepReason.FRACTION_REQUESTED, f"annotation {fraction}")
    if (queued := _queueing_reason(context)) is not None:
        return queued
    if spec.scheduling_gates:
        return KeepRequest(KeepReason.SCHEDULING_GATED, spec.scheduling_gates[0].name)
    return None


def _queueing_reason(context: GpuPodContext) -> KeepRequest | None:
    """Return why a queueing system keeps a pod's request.

    Kueue and Volcano do not while the template may still be changed. KAI, which charges pods, depends on the smaller
    request.
    """
    queued, right_sizing = context.request.queued, context.policies.right_sizing
    templates = right_sizing.rule.templates if right_sizing is not None else None
    if queued is not None and isinstance(queued.queue, UnknownQueue):
        kept = queued.queue.kept
        if templates is not None or kept.reason is KeepReason.WORKLOAD_EXISTS:
            return kept
    may_change = [queued.queue.system] if templates is not None and queued is not None else []
    sign = queueing_sign(context.pod, *may_change)
    if not sign:
        return None
    if other := queueing_sign(context.pod, *may_change, KAI):
        return _charging_reason(context, templates, other)
    if KAI_POOL_LABEL in context.pod.metadata.labels:
        return KeepRequest(KeepReason.SCHEDULER_SHARD, f"label {KAI_POOL_LABEL}")
    return None if templates is PolicyMode.ENFORCE else KeepRequest(KeepReason.CHARGED_AS_WHOLE, sign)


def _charging_reason(context: GpuPodContext, templates: PolicyMode | None, sign: str) -> KeepRequest:
    """Return why a pod keeps what a queue charges: by what would change that, if anything would.

    Args:
        templates: The mode in which the policy right-sizes templates.
        sign: Of any queueing system on the pod but KAI, which charges pods.
    """
    pod = context.pod
    system = context.request.charged_by or charging_system_of_pod(pod)
    if other := queueing_sign(pod, system, KAI):
        return KeepRequest(KeepReason.QUEUED_POD, other)
    enforced = templates is PolicyMode.ENFORCE
    return KeepRequest(KeepReason.ALREADY_CHARGED if enforced else KeepReason.QUEUED, sign)


def charging_system_of_pod(pod: Pod) -> QueueingSystem:
    """Return the system that charges the template of a pod's workload, by its owner; `NO_SYSTEM` if none does."""
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    if owner is None:
        return NO_SYSTEM
    kind, owner_group = workload_of(pod).partition("/")[0], owner.api_version.rpartition("/")[0]
    group = owner_group if kind == owner.kind else GROUPS_BY_KIND.get(kind, "")
    if (group, kind) not in CHARGED_KINDS or (owner_group, owner.kind) not in WORKLOAD_KINDS:
        return NO_SYSTEM
    return VOLCANO if owner_group == VOLCANO_GROUP else KUEUE


def covers_need(offer: GpuOffer, need: GpuNeed) -> bool:
    """Return whether one unit of an offer has enough memory and compute for a need."""
    return has_enough_memory(offer, need) and (need.compute_milli is None or offer.compute_milli >= need.compute_milli)


def has_enough_memory(offer: GpuOffer, need: GpuNeed) -> bool:
    """Return whether one unit of an offer has enough memory for a need."""
    return offer.memory_mib is not None and offer.memory_mib >= need.memory_mib


def need_by_evidence(demand: DemandInput, usage: UsageView) -> GpuNeed | KeepRequest:
    """Return the largest need of the requesting containers by the first evidence that has one, or why none has."""
    observed = [usage.find(demand.namespace, demand.workload, one.container.name) for one in demand.requests]
    for use in observed:
        if use is not None and use.blocked_reason:
            return KeepRequest(KeepReason.RECENT_FAILURE, use.blocked_reason)
    kept, declared, rule = NO_EVIDENCE, demand.declared, demand.rule
    for evidence in rule.evidence:
        need: GpuNeed | KeepRequest = kept
        if evidence is EvidenceSource.DECLARED and declared.memory_mib is not None:
            need = GpuNeed(declared.memory_mib, declared.compute_milli, evidence, f"{declared.text} declared")
        elif evidence is EvidenceSource.OBSERVED and any(observed):
            need = _need_from_usage(demand, observed, usage)
        elif evidence is EvidenceSource.DEFAULT and rule.default_memory_mib is not None:
            if kept.reason is KeepReason.RISK_TOO_HIGH:
                continue  # the observed usage excludes every smaller size
            need = _need_from_default(demand, observed, rule.default_memory_mib)
        if isinstance(need, GpuNeed):
            return need
        kept = need
    return kept


def _need_from_usage(
    demand: DemandInput, observed: Sequence[ObservedUsage | None], usage: UsageView
) -> GpuNeed | KeepRequest:
    rule = demand.rule
    price_milli = usage.price_milli(rule.risk_ppm)
    sizes: list[tuple[int, ObservedUsage]] = []
    for one, use in zip(demand.requests, observed, strict=True):
        if use is None:
            return KeepRequest(KeepReason.NO_EVIDENCE, f"its container {one.container.name[:63]} has no usage data")
        preallocation = _preallocation_reason(one.container, use)
        if preallocation:
            return KeepRequest(KeepReason.PREALLOCATES, preallocation)
        size = choose_size(use, demand.sizes(), price_milli, rule.risk_ppm)
        if isinstance(size, KeepRequest):
            return size
        sizes.append((size, use))
    largest, of = max(sizes, key=itemgetter(0))
    compute = _observed_compute(observed, rule)
    words = describe_size(of, largest, rule.risk_ppm)
    if compute is None:
        words += "; its compute need is unknown"
    return GpuNeed(largest, compute, EvidenceSource.OBSERVED, words)


def _need_from_default(
    demand: DemandInput, observed: Sequence[ObservedUsage | None], size: int
) -> GpuNeed | KeepRequest:
    """Return the policy's default, unless observed usage contradicts it or the framework preallocates."""
    rule = demand.rule
    for one, use in zip(demand.requests, observed, strict=True):
        preallocation = _preallocation_reason(one.container, use)
        if preallocation:
            return KeepRequest(KeepReason.PREALLOCATES, preallocation)
        against = _evidence_against(size, use, rule.risk_ppm) if use is not None else ""
        if against:
            return KeepRequest(KeepReason.DEFAULT_TOO_SMALL, f"{format_mib(size)}, {against}")
    compute = max(rule.default_compute_milli or 0, _observed_compute(observed, rule) or 0) or None
    return GpuNeed(size, compute, EvidenceSource.DEFAULT, f"{format_mib(size)} by the policy's default")


def _evidence_against(size: int, use: ObservedUsage, max_risk_ppm: int) -> str:
    if use.memory_mib > size:
        return f"and {format_mib(use.memory_mib)} observed"
    risk_ppm = use.risk_ppm(size) if use.sizes_mib else 0
    return f"at {risk_ppm / 10_000:g}% risk per hour" if risk_ppm > max_risk_ppm else ""


def _observed_compute(observed: Sequence[ObservedUsage | None], rule: RightSizingRules) -> int | None:
    """Return the largest observed compute plus the margin, rounded up; None if unknown."""
    known = [use.compute_milli for use in observed if use is not None and use.compute_milli is not None]
    return min(1000, -(-max(known) * (100 + rule.margin_percent) // 100)) if known else None


def _preallocation_reason(container: Container, use: ObservedUsage | None) -> str:
    """Return why a container's usage does not show its need: its framework, or constant usage; "" if it does."""
    framework = framework_of(container)
    if framework is not None:
        return framework.name
    return CONSTANT_USAGE if use is not None and use.preallocates else ""


@request_cache(SIZE_CACHE)
def choose_size(use: ObservedUsage, sizes: tuple[int, ...], price_milli: int, max_risk_ppm: int) -> int | KeepRequest:
    """Return the cheapest size with acceptable risk, MiB; without one, the smallest such size that no offer has.

    Args:
        sizes: The sizes of the offers, MiB, ascending.
        price_milli: Price of running out of memory once, in thousandths of an hour of an unused card.
        max_risk_ppm: Share of pod-hours that may need more, in millionths.

    Returns:
        The size, or why the whole card is cheaper or no size can be stated.
    """
    if not use.sizes_mib:
        return KeepRequest(KeepReason.SHORT_HISTORY)
    costs = [
        (_size_cost(use, size, risk, price_milli), size)
        for size in sizes
        if (risk := use.risk_ppm(size)) <= max_risk_ppm
    ]
    if not costs:
        return use.size_mib(max_risk_ppm)
    cost, best = min(costs)
    whole = -(_COST_UNIT * use.typical_mib // max(use.card_mib, best + 1))
    return best if cost < whole else KeepRequest(KeepReason.RISK_TOO_HIGH, describe_size(use, best, max_risk_ppm))


def _size_cost(use: ObservedUsage, size: int, risk_ppm: int, price_milli: int) -> int:
    return price_milli * risk_ppm - _COST_UNIT * use.typical_mib // size


@request_cache(SIZE_CACHE)
def describe_size(use: ObservedUsage, size: int, max_risk_ppm: int) -> str:
    """Return a size, its stated risk and the evidence, for people; also why it is far above the peak, if it is."""
    amount = f"{size}Mi" if size % 1024 else f"{size // 1024}Gi"
    risk = f"{use.risk_ppm(size) / 10_000:g}%"
    windows = f"the peaks of {use.samples} windows of {use.horizon_hours} h of its {use.pool}"
    is_far = use.size_mib(max_risk_ppm) >= FAR_ABOVE_PEAK * use.memory_mib
    gap = f"; {_describe_gap(use.memory_mib)}" if is_far else ""
    return f"{amount} from observed usage with {risk} risk per hour, based on {windows}{gap}"


def _describe_gap(peak_mib: int) -> str:
    return f"its own peak is {format_mib(peak_mib)}, but its recent usage is too little to exclude a much higher one"


def unmodeled_constraints(pod: Pod, view: ClusterView) -> Iterator[str]:
    """Yield the scheduling constraints of a pod that the cluster view does not hold.

    A pod that would have run must not wait for a slice on a node that such a constraint excludes. Ignored where a
    policy lets pods wait (`whenFull: wait`).
    """
    if has_inline_disk(pod):
        yield "a disk without a volume claim"
    if rule := rules_of_scheduler(view.schedulers, pod.spec.scheduler_name).unmodeled:
        yield f"{rule} of its scheduler"
    for one in pod.spec.containers + pod.spec.init_containers:
        for name in (*one.resources.requests, *one.resources.limits):
            if name.startswith(DEVICE_CLASS_PREFIX) and parse_whole_number(amounts_of_container(one)[name]) != 0:
                yield f"resource {name}"
