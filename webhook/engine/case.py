"""Case: one pod before its judges, with what several steps ask for worked out once."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.engine.asking import Asked
from webhook.engine.demand import declared_by
from webhook.engine.limitrange import NOBODY, Injected
from webhook.engine.reach import Reach
from webhook.engine.rules import Rules
from webhook.model.cluster import ClusterView
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
