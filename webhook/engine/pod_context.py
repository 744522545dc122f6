"""The context of one pod: its GPU requests and declared need, the matched policies and its candidate nodes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import PodGpuRequests, sum_gpu_requests
from webhook.engine.limitrange.injected_gpus import NO_INJECTED_GPUS, InjectedAmount, InjectedGpus, remove_injected_gpus
from webhook.engine.matched_policies import MatchedPolicies, without_additions, without_changes
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import QuantityError
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import GPU_COMPUTE_ANNOTATION, GPU_MEMORY_ANNOTATION, KEEP_ANNOTATION, MIRROR_ANNOTATION
from webhook.model.bounded_cache import request_cache
from webhook.model.claims import extended_names
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import GpuForm, PolicyMode
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import Pod
from webhook.model.quantity import parse_mebibytes, parse_nano
from webhook.model.usage import UsageView

MAX_MEMORY_MIB = 16 * 1024 * 1024
"""16 TiB: more than any card has; a larger declaration has a wrong unit."""


class DeclaredNeed(msgspec.Struct, frozen=True, gc=False):
    """The GPU need that a pod's annotations declare.

    Attributes:
        text: The memory as written.
        memory_mib: None if nothing readable is declared; likewise `compute_milli`.
        errors: Annotations that cannot be parsed.
    """

    text: str = ""
    memory_mib: int | None = None
    compute_milli: int | None = None
    errors: tuple[PolicyFinding, ...] = ()


NOTHING_DECLARED = DeclaredNeed()

KEEP_VALUES = ("true", "false")


class PodContext(msgspec.Struct, frozen=True):
    """A pod with the policies that match it, and the cluster.

    Attributes:
        gpu_requests: Its GPU requests, without injected GPUs that are removed.
        limit_range_gpus: GPUs that LimitRanges inject.
    """

    request: AdmissionRequest
    pod: Pod
    gpu_requests: PodGpuRequests
    policies: MatchedPolicies
    view: ClusterView
    usage: UsageView
    limit_range_gpus: InjectedGpus


class GpuPodContext(PodContext, frozen=True):
    """The context of a new pod that requests GPUs.

    Attributes:
        declared_need: The GPU need by the pod's annotations.
        feasible: The nodes it may run on, with tolerations that policies enforce.
        offers: The offers of the requested names, on nodes that selector and affinity allow.
        offer_nodes: Mask of the nodes of these offers.
        mixes_whole_and_partial: True if its nodes offer whole cards and parts under the requested name.
    """

    declared_need: DeclaredNeed
    feasible: FeasibleNodes
    offers: tuple[GpuOffer, ...]
    offer_nodes: int
    mixes_whole_and_partial: bool

    def leaves_suitable_node(self, remaining: int, candidates: int) -> bool:
        """Return whether an empty remaining node can take the pod; if no candidate can, any remaining node will do."""
        if not remaining:
            return False
        return self.fits_empty_node(self.pod, remaining) or not self.fits_empty_node(self.pod, candidates)

    def fits_empty_node(self, pod: Pod, nodes: int) -> bool:
        """Return whether an empty node of a mask can take the whole pod: its GPUs, its CPU and its memory.

        Args:
            pod: The pod, as it came or with additions.
        """
        return self.has_large_enough_node(pod, self.nodes_with_all_gpus(nodes))

    def has_large_enough_node(self, pod: Pod, nodes: int) -> bool:
        """Return whether a node of a mask is large enough for the pod's CPU and memory."""
        known, (cpu_milli, memory) = self.view.fleet.nodes, cpu_and_memory(pod)
        return any(known[node].cpu_milli >= cpu_milli and known[node].memory >= memory for node in bit_positions(nodes))

    def nodes_with_all_gpus(self, nodes: int) -> int:
        """Return those nodes of a mask with all GPUs of the pod, whose kubelet accepts the counts.

        A name that a DeviceClass has too may be served by a claim, on nodes that advertise none.
        """
        fleet, claimable = self.view.fleet, extended_names(self.view.classes)
        for name, count in self.gpu_requests.totals.items():
            if name not in claimable:
                nodes &= fleet.nodes_with_units(name, count)
        if self.gpu_requests.max_count < 2:
            return nodes
        # The kubelet rejects containers with several MPS shares.
        multiple = {one.resource.name for one in self.gpu_requests.requests if one.count > 1}
        shares = [offer for offer in self.offers if offer.form is GpuForm.MPS and offer.replicas > 1]
        return nodes & ~union_masks(offer.nodes for offer in shares if offer.resource in multiple)


def build_context(
    request: AdmissionRequest,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    injected: Sequence[InjectedAmount],
    policies: MatchedPolicies,
    view: ClusterView,
    usage: UsageView,
) -> PodContext:
    """Build the context of a pod: a `GpuPodContext` for a new pod with GPU requests.

    A pod that comes with its node must stay there, so policies add nothing that could prevent it: only injected GPUs
    are removed, which no kubelet minds, and its GPUs are accounted, because a node name must not bypass a quota. A
    mirror of a static pod stays unchanged.
    """
    if request.operation != "CREATE" or not policies.names:
        return PodContext(request, pod, gpu_requests, policies, view, usage, NO_INJECTED_GPUS)
    if pod.spec.node_name or is_mirror_pod(pod):
        policies = without_changes(policies) if is_mirror_pod(pod) else without_additions(policies)
    removed = NO_INJECTED_GPUS
    if injected:
        removed = InjectedGpus(tuple(injected))
        if policies.limit_range_gpu_policies and not pod.has_uid:
            removed = remove_injected_gpus(pod, removed.amounts, view.ranges(request.namespace))
        if removed.removed:
            gpu_requests = sum_gpu_requests(
                tuple([one for one in gpu_requests.requests if not removed.contains(one.path, one.resource.name)]),
                gpu_requests.unknown_resources,
                gpu_requests.errors,
            )
    if not gpu_requests.requests:
        return PodContext(request, pod, gpu_requests, policies, view, usage, removed)
    fleet, additions = view.fleet, policies.additions
    feasible = FeasibleNodes(
        view,
        pod,
        additions.tolerations,
        tolerate_gpu_taints=additions.tolerate_gpu_taints,
        excluded=_excluded_nodes(request.namespace, pod, policies, view) if view.has_anti_affinity else 0,
    )
    whole = fleet.nodes_advertising(WHOLE_GPU) & feasible.selected & feasible.tolerated
    return GpuPodContext(
        *(request, pod, gpu_requests, policies, view, usage, removed),
        declared_need_of(pod),
        feasible,
        *fleet.offers_on_nodes(gpu_requests.totals, feasible.selected),
        mixes_whole_and_partial=WHOLE_GPU in gpu_requests.totals and whole & fleet.partial_gpu_nodes not in (0, whole),
    )


def _excluded_nodes(namespace: str, pod: Pod, policies: MatchedPolicies, view: ClusterView) -> int:
    """Return the nodes from which other pods exclude a pod, with its labels or with those that policies add."""
    labels = pod.metadata.labels
    excluded = view.nodes_excluded_by_pods(namespace, tuple(labels.items()))
    added = dict(label for _, section in policies.injections for label in section.labels)
    if added.keys() <= labels.keys():
        return excluded
    return excluded | view.nodes_excluded_by_pods(namespace, tuple((added | labels).items()))


def is_mirror_pod(pod: Pod) -> bool:
    """Return True for the mirror of a static pod. No kubelet runs a mirror that another client created."""
    return MIRROR_ANNOTATION in pod.metadata.annotations


def invalid_keep_annotation(pod: Pod) -> tuple[PolicyFinding, ...]:
    """Report an opt-out annotation with another value. It counts as an opt-out, because that was the intention."""
    value = pod.metadata.annotations.get(KEEP_ANNOTATION, "true")
    if value in KEEP_VALUES:
        return ()
    message = f'must be "true" or "false" (found {value[:60]!r}); the pod keeps its request'
    return (
        PolicyFinding(
            "GPU-R104",
            ("metadata", "annotations", KEEP_ANNOTATION),
            message,
            f'Write {KEEP_ANNOTATION}: "true".',
            PolicyMode.WARN,
        ),
    )


def declared_need_of(pod: Pod) -> DeclaredNeed:
    """Parse the GPU need that a pod declares."""
    annotations = pod.metadata.annotations
    if GPU_MEMORY_ANNOTATION not in annotations and GPU_COMPUTE_ANNOTATION not in annotations:
        return NOTHING_DECLARED
    text, compute = annotations.get(GPU_MEMORY_ANNOTATION, ""), annotations.get(GPU_COMPUTE_ANNOTATION, "")
    memory_mib, compute_milli = _parse_memory_mib(text), _parse_percent_milli(compute)
    errors: list[PolicyFinding] = []
    if GPU_MEMORY_ANNOTATION in annotations and memory_mib is None:
        errors.append(_unreadable_annotation(GPU_MEMORY_ANNOTATION, text, "1Mi to 16Ti of GPU memory", "8Gi"))
    if GPU_COMPUTE_ANNOTATION in annotations and compute_milli is None:
        errors.append(_unreadable_annotation(GPU_COMPUTE_ANNOTATION, compute, "a percentage from 1% to 100%", "20%"))
    return DeclaredNeed(text, memory_mib, compute_milli, tuple(errors))


@request_cache(64)
def _parse_memory_mib(text: str) -> int | None:
    try:
        size = parse_mebibytes(text) if text else 0
    except QuantityError:
        return None
    return size if 0 < size <= MAX_MEMORY_MIB and parse_nano(text) >= parse_nano("1Mi") else None


@request_cache(64)
def _parse_percent_milli(text: str) -> int | None:
    """Return thousandths of "20%" or "12.5%"."""
    if not text.endswith("%") or not text.isascii():
        return None
    try:
        share = -(-parse_nano(text[:-1].strip()) // 100_000_000)
    except QuantityError:
        return None
    return share if 0 < share <= 1000 else None


def _unreadable_annotation(key: str, found: str, must: str, example: str) -> PolicyFinding:
    return PolicyFinding(
        "GPU-R104",
        ("metadata", "annotations", key),
        f"must be {must} (found {found[:60]!r})",
        f'Write {key}: "{example}".',
        at_most=PolicyMode.WARN,
    )
