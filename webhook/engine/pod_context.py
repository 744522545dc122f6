"""The context of one pod: its GPU requests, the matched policies and its candidate nodes, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webhook.engine.declared_need import declared_need_of
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import PodGpuRequests, sum_gpu_requests
from webhook.engine.limitrange.injected_gpus import NO_INJECTED_GPUS, InjectedAmount, InjectedGpus, remove_injected_gpus
from webhook.engine.matched_policies import MatchedPolicies, without_additions, without_changes
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import Pod
from webhook.model.usage import UsageView


class PodContext:
    """A pod with the policies that match it, and the cluster.

    Attributes:
        gpu_requests: Its GPU requests, without injected GPUs that are removed.
        limit_range_gpus: GPUs that LimitRanges inject.
    """

    __slots__ = ("gpu_requests", "limit_range_gpus", "pod", "policies", "request", "usage", "view")

    def __init__(
        self,
        request: AdmissionRequest,
        pod: Pod,
        gpu_requests: PodGpuRequests,
        policies: MatchedPolicies,
        view: ClusterView,
        usage: UsageView,
        limit_range_gpus: InjectedGpus = NO_INJECTED_GPUS,
    ) -> None:
        self.request = request
        self.pod = pod
        self.gpu_requests = gpu_requests
        self.policies = policies
        self.view = view
        self.usage = usage
        self.limit_range_gpus = limit_range_gpus


class GpuPodContext(PodContext):
    """The context of a new pod that requests GPUs.

    Attributes:
        declared_need: The GPU need by the pod's annotations.
        namespace_annotations: Annotations of the pod's namespace.
        feasible: The nodes it may run on, with tolerations that policies enforce.
        offers: The offers of the requested names, on nodes that selector and affinity allow.
        offer_nodes: Mask of the nodes of these offers.
        mixes_whole_and_partial: True if its nodes offer whole cards and parts under the requested name.
    """

    __slots__ = (
        "declared_need",
        "feasible",
        "mixes_whole_and_partial",
        "namespace_annotations",
        "offer_nodes",
        "offers",
    )

    def __init__(
        self,
        request: AdmissionRequest,
        pod: Pod,
        gpu_requests: PodGpuRequests,
        policies: MatchedPolicies,
        view: ClusterView,
        usage: UsageView,
        limit_range_gpus: InjectedGpus = NO_INJECTED_GPUS,
    ) -> None:
        super().__init__(request, pod, gpu_requests, policies, view, usage, limit_range_gpus)
        fleet, additions, namespace = view.fleet, policies.additions, view.namespace(request.namespace)
        self.declared_need = declared_need_of(pod)
        self.namespace_annotations: Mapping[str, str] = namespace.metadata.annotations if namespace else {}
        self.feasible = FeasibleNodes(view, pod, additions.tolerations, tolerate_gpu_taints=additions.gpu_taints)
        nodes = self.feasible.selected
        self.offers, self.offer_nodes = fleet.offers_on_nodes(gpu_requests.totals, nodes)
        partial = nodes & self.feasible.tolerated & fleet.partial_gpu_nodes
        self.mixes_whole_and_partial = (
            bool(partial)
            and WHOLE_GPU in gpu_requests.totals
            and bool(fleet.nodes_advertising(WHOLE_GPU) & nodes & self.feasible.tolerated & ~fleet.partial_gpu_nodes)
        )

    def leaves_suitable_node(self, remaining: int, candidates: int) -> bool:
        """Can a remaining node take the pod when empty? If no candidate can, any remaining node will do."""
        if not remaining:
            return False
        return self.fits_empty_node(self.pod, remaining) or not self.fits_empty_node(self.pod, candidates)

    def fits_empty_node(self, pod: Pod, nodes: int) -> bool:
        """Could an empty node of a mask take the whole pod: its GPUs, its CPU and its memory?

        Args:
            pod: The pod, as it came or with additions.
        """
        return self.has_large_enough_node(pod, self.nodes_with_all_gpus(nodes))

    def has_large_enough_node(self, pod: Pod, nodes: int) -> bool:
        """Is a node of a mask large enough for the pod's CPU and memory?"""
        known, (cpu_milli, memory) = self.view.fleet.nodes, cpu_and_memory(pod)
        return any(known[node].cpu_milli >= cpu_milli and known[node].memory >= memory for node in bit_positions(nodes))

    def nodes_with_all_gpus(self, nodes: int) -> int:
        """Return those nodes of a mask with all GPUs of the pod, whose kubelet accepts the counts.

        A name that a DeviceClass has too may be served by a claim, on nodes that advertise none.
        """
        fleet, claimable = self.view.fleet, self.view.classes.values()
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
        return PodContext(request, pod, gpu_requests, policies, view, usage)
    if pod.spec.node_name or is_mirror_pod(pod):
        policies = without_changes(policies) if is_mirror_pod(pod) else without_additions(policies)
    removed = NO_INJECTED_GPUS
    if injected:
        removed = InjectedGpus(tuple(injected))
        if policies.limit_range_gpu_policies and not pod.is_stored:
            removed = remove_injected_gpus(pod, removed.amounts, view.ranges(request.namespace))
        if removed.removed:
            gpu_requests = sum_gpu_requests(
                tuple([one for one in gpu_requests.requests if not removed.contains(one.path, one.resource.name)]),
                gpu_requests.unknown_resources,
                gpu_requests.errors,
            )
    if gpu_requests.requests:
        return GpuPodContext(request, pod, gpu_requests, policies, view, usage, removed)
    return PodContext(request, pod, gpu_requests, policies, view, usage, removed)


def is_mirror_pod(pod: Pod) -> bool:
    """Does a pod mirror a static pod of a node? No kubelet runs a mirror that another client created."""
    return MIRROR_ANNOTATION in pod.metadata.annotations
