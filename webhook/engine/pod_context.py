"""Case: one pod before its judges, with what several steps ask for worked out once."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.engine.demand import declared_need_of
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.limitrange import NO_INJECTED_GPUS, InjectedGpus
from webhook.engine.matched_policies import MatchedPolicies
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pod_resources import cpu_and_memory
from webhook.model.pods import Pod
from webhook.model.usage import UsageView


class PodContext:
    """A pod that asks for GPUs, the rules that speak about it, and the cluster it comes to.

    Attributes:
        injected: GPUs that LimitRanges put in. Those that are taken out again are not in `asked`.
        declared: What the pod's annotations say of its need.
        namespace_notes: Annotations of the pod's namespace.
        reach: The nodes it may run on, enforced tolerations counted.
        offers: The offers of the names it asks for, on nodes that selector and affinity leave.
        offered: Mask of the nodes of these offers.
        whole_or_part: True if nodes that may take it offer whole cards and parts under the name it asks for.
    """

    __slots__ = (
        "declared_need",
        "feasible",
        "gpu_requests",
        "injected",
        "mixes_whole_and_partial",
        "namespace_annotations",
        "offer_nodes",
        "offers",
        "pod",
        "policies",
        "request",
        "usage",
        "view",
    )

    def __init__(
        self,
        request: AdmissionRequest,
        pod: Pod,
        asked: PodGpuRequests,
        rules: MatchedPolicies,
        view: ClusterView,
        usage: UsageView,
        injected: InjectedGpus = NO_INJECTED_GPUS,
    ) -> None:
        self.request = request
        self.pod = pod
        self.gpu_requests = asked
        self.policies = rules
        self.view = view
        self.usage = usage
        self.injected = injected
        self.declared_need = declared_need_of(pod)
        namespace = view.namespace(request.namespace)
        self.namespace_annotations: Mapping[str, str] = namespace.metadata.annotations if namespace else {}
        self.feasible = FeasibleNodes(view, pod, rules.additions.tolerations, markers=rules.additions.gpu_taints)
        self.offers, self.offer_nodes = view.fleet.offers_on_nodes(asked.totals, self.feasible.selected)
        self.mixes_whole_and_partial = WHOLE_GPU in asked.totals and self._mixes_whole_and_partial()

    def _mixes_whole_and_partial(self) -> bool:
        fleet, nodes = self.view.fleet, self.feasible.selected & self.feasible.tolerated
        if not fleet.partial_gpu_nodes & nodes:
            return False
        return bool(fleet.nodes_advertising(WHOLE_GPU) & nodes & ~fleet.partial_gpu_nodes)

    def leaves_suitable_node(self, left: int, among: int) -> bool:
        """Is a node left that could take the pod once it is empty? Where none of those before could, any will do."""
        return bool(left) and (self.fits_empty_node(self.pod, left) or not self.fits_empty_node(self.pod, among))

    def fits_empty_node(self, pod: Pod, nodes: int) -> bool:
        """Could a node of a mask, if it were empty, take all of the pod: its GPUs, its CPU and its memory?

        Args:
            pod: The pod of the case, as it came or with what it will be given.
        """
        return self.has_large_enough_node(pod, self.nodes_with_all_gpus(nodes))

    def has_large_enough_node(self, pod: Pod, nodes: int) -> bool:
        """Is a node of a mask large enough for the pod's CPU and memory?"""
        known, (cpu_milli, memory) = self.view.fleet.nodes, cpu_and_memory(pod)
        return any(known[node].cpu_milli >= cpu_milli and known[node].memory >= memory for node in bit_positions(nodes))

    def nodes_with_all_gpus(self, nodes: int) -> int:
        """Those nodes of a mask that have what the pod asks for of every GPU resource, and whose kubelet gives it.

        A name that a DeviceClass has too may be had by a claim, on nodes that advertise none.
        """
        fleet, by_claim = self.view.fleet, self.view.classes.values()
        for name, count in self.gpu_requests.totals.items():
            if name not in by_claim:
                nodes &= fleet.nodes_with_units(name, count)
        several = (
            {ask.resource.name for ask in self.gpu_requests.requests if ask.count > 1}
            if self.gpu_requests.max_count > 1
            else ()
        )
        refusing = (offer.nodes for offer in self.offers if offer.resource in several and _refuses_multiple(offer))
        return nodes & ~union_masks(refusing)


def _refuses_multiple(offer: GpuOffer) -> bool:
    """Does the kubelet refuse a container that asks for several of these?"""
    return offer.form is GpuForm.MPS and offer.replicas > 1
