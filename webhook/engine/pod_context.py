"""The values of one pod on its way through the eight steps: its context, and the changes that step 5 collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from webhook.engine.claimed_gpus import ClaimedGpus
from webhook.engine.feasible_nodes import FeasibleNodes, has_large_enough_node
from webhook.engine.gpu_requests import DeclaredNeed, PodGpuRequests, container_at
from webhook.engine.matched_policies import MatchedPolicies
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView, NamespaceView
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.enums import GpuForm
from webhook.model.field_paths import FieldPath
from webhook.model.node_masks import union_masks
from webhook.model.offers import GpuOffer
from webhook.model.pod_resources import RequestedAmounts
from webhook.model.pods import NodeSelectorRequirement, Pod, QuantityText, Toleration
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.well_known import Json


class InjectedAmount(NamedTuple):
    """One injected GPU amount of one container.

    Attributes:
        limit_range: The LimitRange that injects it.
        present: True if the pod already has it; False if LimitRanger's first pass is still to come.
    """

    path: FieldPath
    container: str
    resource: str
    limit_range: str
    present: bool


class InjectedGpus(NamedTuple):
    """The injected GPUs of a pod, and their removal.

    Attributes:
        removed: True if they were removed.
        kept_reason: Why they could not be removed; "" if removal succeeded or was not tried.
        limits: The limits that remove them, by container path.
        requests: The requests that remove them, by container path.
    """

    amounts: tuple[InjectedAmount, ...] = ()
    removed: bool = False
    kept_reason: str = ""
    limits: Mapping[FieldPath, dict[str, QuantityText]] = {}
    requests: Mapping[FieldPath, dict[str, QuantityText]] = {}

    def contains(self, path: FieldPath, resource: str) -> bool:
        """Return whether this amount was injected."""
        return any(one.path == path and one.resource == resource for one in self.amounts)


class PodContext(msgspec.Struct, frozen=True):
    """A pod with the policies that match it, and the cluster.

    Attributes:
        submitted_requests: Its GPU requests as submitted.
        gpu_requests: The same without injected GPUs that a policy removes.
        policy_set: All policies, including those that do not match.
        policies: The policies that match it.
        candidates: Mask of the policies that match it, match conditions aside.
        limit_range_gpus: GPUs that LimitRanges inject.
        claimed: GPUs that it requests by claims and device classes.
    """

    request: AdmissionRequest
    pod: Pod
    submitted_requests: PodGpuRequests
    gpu_requests: PodGpuRequests
    policy_set: PolicySet
    policies: MatchedPolicies
    candidates: int
    view: ClusterView
    namespace: NamespaceView
    usage: UsageView
    limit_range_gpus: InjectedGpus
    claimed: ClaimedGpus


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
        amounts = self.feasible.amounts()
        return self.fits_empty_node(amounts, remaining) or not self.fits_empty_node(amounts, candidates)

    def fits_empty_node(self, amounts: RequestedAmounts, nodes: int) -> bool:
        """Return whether an empty node of a mask can take the whole pod: its GPUs, its CPU and its memory.

        Args:
            amounts: What the pod requests besides GPUs, as submitted or with additions.
        """
        return has_large_enough_node(self.view.fleet, amounts, self.nodes_with_all_gpus(nodes))

    def nodes_with_all_gpus(self, nodes: int) -> int:
        """Return those nodes of a mask with all GPUs of the pod, whose kubelet accepts the counts.

        A name that a DeviceClass has too may be served by a claim, on nodes that advertise none.
        """
        fleet = self.view.fleet
        for name, count in self.gpu_requests.totals.items():
            if name not in self.view.claimable_names:
                nodes &= fleet.nodes_advertising(name, count)
        if self.gpu_requests.max_count < 2:
            return nodes
        # The kubelet rejects containers with several MPS shares.
        multiple = {one.resource.name for one in self.gpu_requests.requests if one.count > 1}
        shares = [offer for offer in self.offers if offer.form is GpuForm.MPS and offer.replicas > 1]
        return nodes & ~union_masks(offer.nodes for offer in shares if offer.resource in multiple)


class PodMutation(msgspec.Struct):
    """Additions to a pod and replacements in it.

    Attributes:
        pod: The pod before these changes.
        limits: New limits by container path, whole maps.
        requests: New requests by container path, whole maps.
        original_resources: GPU amounts before right-sizing, by container name.
        applied_choice: The chosen offer, if it is applied, with its changes of memory fractions.
        required_node_affinity: Expressions to AND into every required node affinity term.
        preferred_node_affinity: Terms to add, as for pod affinity.
        annotations: Annotations to add, without the decision record.
        changed: What was changed, one word each, in order.
        policy: The policy that makes the next changes, or several.
        changes_by_policy: The words of `changed`, by policy.
    """

    pod: Pod
    limits: dict[FieldPath, dict[str, QuantityText]] = {}
    requests: dict[FieldPath, dict[str, QuantityText]] = {}
    original_resources: Json = {}
    applied_choice: OfferChoice | None = None
    tolerations: list[Toleration] = []
    required_node_affinity: list[NodeSelectorRequirement] = []
    preferred_node_affinity: list[Json] = []
    preferred_pod_affinity: list[Json] = []
    required_pod_affinity: list[Json] = []
    spread_constraints: list[Json] = []
    runtime_class_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    changed: list[str] = []
    policy: str = ""
    changes_by_policy: dict[str, list[str]] = {}

    def record_change(self, change: str) -> None:
        """Add a change to the record, by its word."""
        if change not in self.changed:
            self.changed.append(change)
        recorded = self.changes_by_policy.setdefault(self.policy, [])
        if change not in recorded:
            recorded.append(change)

    def resources_at(self, path: FieldPath) -> tuple[Mapping[str, QuantityText], Mapping[str, QuantityText]]:
        """Return limits and requests of a container with the changes so far."""
        resources = container_at(self.pod, path).resources
        return self.limits.get(path, resources.limits), self.requests.get(path, resources.requests)


class PodDecision(NamedTuple):
    """The decision about a pod, and the changes that it makes."""

    decision: Decision
    mutation: PodMutation
