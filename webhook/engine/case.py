"""Case: one pod before its judges, with what several steps ask for worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from webhook.engine.asking import Asked
from webhook.engine.demand import Declared
from webhook.engine.reach import Reach
from webhook.model.cluster import ClusterView
from webhook.model.modes import Mode
from webhook.model.offers import Offer
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.usage import UsageView
from webhook.policy.compiled import Policy


class Case:
    """What is judged, by which policies, against what."""

    def __init__(
        self,
        request: Request,
        pod: Pod,
        asked: Asked,
        policies: tuple[Policy, ...],
        view: ClusterView,
        usage: UsageView,
    ) -> None:
        self.request = request
        self.pod = pod
        self.asked = asked
        self.policies = policies
        self.view = view
        self.usage = usage

    @cached_property
    def declared(self) -> Declared:
        """What the pod's annotations say of its need."""
        return Declared(self.pod)

    @cached_property
    def reach(self) -> Reach:
        """The nodes the pod may run on, once enforced injections are made."""
        injections = [p.injection for p in self.policies if p.injection and p.injection.mode is Mode.ENFORCE]
        added = tuple(toleration for section in injections for toleration in section.tolerations)
        return Reach(self.view, self.pod, added, markers=any(section.tolerations_auto for section in injections))

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """The offers of the names asked for, on nodes that selector and affinity leave."""
        by_resource = self.view.fleet.by_resource
        return tuple(
            offer
            for name in self.asked.totals
            for offer in by_resource.get(name, ())
            if offer.nodes & self.reach.selected
        )

    @property
    def asks_share(self) -> bool:
        """Does the pod ask for a share of a card, by name or by what its nodes offer?"""
        return any(ask.resource.shared for ask in self.asked.asks) or any(o.replicas > 1 for o in self.offers)

    @property
    def namespace_notes(self) -> Mapping[str, str]:
        """Annotations of the pod's namespace."""
        namespace = self.view.namespace(self.request.namespace)
        return namespace.metadata.annotations if namespace else {}
