"""Case: one pod before its judges, with what several steps ask for worked out once."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.engine.asking import Asked
from webhook.engine.demand import declared_by
from webhook.engine.limitrange import NOBODY, Injected
from webhook.engine.reach import Reach
from webhook.engine.rules import Rules
from webhook.model.cluster import ClusterView
from webhook.model.effective import cpu_and_memory
from webhook.model.masks import bits, union
from webhook.model.modes import Form
from webhook.model.offers import Offer
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.resources import WHOLE_GPU
from webhook.model.usage import UsageView


class Case:
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
        "asked",
        "declared",
        "injected",
        "namespace_notes",
        "offered",
        "offers",
        "pod",
        "reach",
        "request",
        "rules",
        "usage",
        "view",
        "whole_or_part",
    )

    def __init__(
        self,
        request: Request,
        pod: Pod,
        asked: Asked,
        rules: Rules,
        view: ClusterView,
        usage: UsageView,
        injected: Injected = NOBODY,
    ) -> None:
        self.request = request
        self.pod = pod
        self.asked = asked
        self.rules = rules
        self.view = view
        self.usage = usage
        self.injected = injected
        self.declared = declared_by(pod)
        namespace = view.namespace(request.namespace)
        self.namespace_notes: Mapping[str, str] = namespace.metadata.annotations if namespace else {}
        self.reach = Reach(view, pod, rules.adds.tolerations, markers=rules.adds.markers)
        self.offers, self.offered = view.fleet.offering(asked.totals, self.reach.selected)
        self.whole_or_part = WHOLE_GPU in asked.totals and self._whole_or_part()

    def _whole_or_part(self) -> bool:
        fleet, nodes = self.view.fleet, self.reach.selected & self.reach.tolerated
        if not fleet.parts & nodes:
            return False
        return bool(fleet.advertising(WHOLE_GPU) & nodes & ~fleet.parts)

    def leaves_one(self, left: int, among: int) -> bool:
        """Is a node left that could take the pod once it is empty? Where none of those before could, any will do."""
        return bool(left) and (self.fits(self.pod, left) or not self.fits(self.pod, among))

    def fits(self, pod: Pod, nodes: int) -> bool:
        """Could a node of a mask, if it were empty, take all of the pod: its GPUs, its CPU and its memory?

        Args:
            pod: The pod of the case, as it came or with what it will be given.
        """
        return self.holds(pod, self.with_all_units(nodes))

    def holds(self, pod: Pod, nodes: int) -> bool:
        """Is a node of a mask large enough for the pod's CPU and memory?"""
        known, (cpu_milli, memory) = self.view.fleet.nodes, cpu_and_memory(pod)
        return any(known[node].cpu_milli >= cpu_milli and known[node].memory >= memory for node in bits(nodes))

    def with_all_units(self, nodes: int) -> int:
        """Those nodes of a mask that have what the pod asks for of every GPU resource, and whose kubelet gives it.

        A name that a DeviceClass has too may be had by a claim, on nodes that advertise none.
        """
        fleet, by_claim = self.view.fleet, self.view.classes.values()
        for name, count in self.asked.totals.items():
            if name not in by_claim:
                nodes &= fleet.with_units(name, count)
        several = {ask.resource.name for ask in self.asked.asks if ask.count > 1} if self.asked.largest > 1 else ()
        refusing = (offer.nodes for offer in self.offers if offer.resource in several and _refuses(offer))
        return nodes & ~union(refusing)


def _refuses(offer: Offer) -> bool:
    """Does the kubelet refuse a container that asks for several of these?"""
    return offer.form is Form.MPS and offer.replicas > 1
