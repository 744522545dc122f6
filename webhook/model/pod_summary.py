"""PodSummary: the resources that one pod of the cluster holds, in little memory. Thousands of pods share each part."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern

import msgspec

from webhook.model.bounded_cache import request_cache
from webhook.model.csi_migration import AttachedVolume, inline_disks
from webhook.model.daemon_kinds import DaemonKind, daemon_kind
from webhook.model.filters.inter_pod_affinity import identity_of, required_anti_affinity
from webhook.model.filters.node_ports import held_ports
from webhook.model.filters.nominated_pods import nominated_node
from webhook.model.filters.pod_ties import TieKey
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, may_take_gpus
from webhook.model.pod_groups import group_of_pod
from webhook.model.pod_resources import ResourceAmounts, count_gpu_units, effective_amount, effective_requests
from webhook.model.pod_volumes import PodVolumes, VolumeUse, pod_volumes
from webhook.model.pods import NodeSelectorTerm, Pod, required_terms
from webhook.model.quantity import NANO
from webhook.model.quota_matching import CountedResource, PodScopeAttributes, scope_attributes

CLAIMED_DEVICES = "resourceclaims"
"""Stands for the devices of a pod's claims, which count by the claims: what it needs of a node besides counts too."""


MAX_CONSTRAINT_BYTES = 16 * 1024
"""Bytes of a node selector and of required node affinity. With 100 names of nodes they have 4,000."""


class NodeConstraints(msgspec.Struct, frozen=True, gc=False):
    """Nodes where a pod may run: label pairs, and required terms (a node must match at least one), or None."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None


class PodClaimUse(msgspec.Struct, frozen=True, gc=False):
    """A claim of a pod: the template that it is made from, "" for none, and its name, "" while it is not known."""

    template: str
    name: str


class PodSummary(msgspec.Struct, frozen=True, gc=False):
    """One pod that has not ended.

    Attributes:
        node: Its node; "" without one.
        requests: Amounts that it holds there, or waits for.
        limits: Limits of CPU, memory and disk.
        constraints: Where it may run, while it has no node.
        kind: Scopes by which quotas count it.
        claims: Its ResourceClaims.
        ties: Its labels if others may count it, its required anti-affinity, and its host ports.
        volumes: Its volume claims; of a pod with a node only their names.
        is_gated: True while a scheduling gate keeps it from getting a node.
        nominated: The node for which it is nominated; "" for none, or on a node.
        disks: The disks that it names without a claim, on its node.
        daemon: What it is if its node always has such a pod: a DaemonSet's, or a static one. Else None.
    """

    node: str
    requests: ResourceAmounts
    limits: ResourceAmounts = ()
    constraints: NodeConstraints | None = None
    kind: PodScopeAttributes = PodScopeAttributes()
    claims: tuple[PodClaimUse, ...] = ()
    ties: tuple[TieKey, ...] = ()
    is_gated: bool = False
    volumes: PodVolumes = ()
    nominated: str = ""
    disks: tuple[AttachedVolume, ...] = ()
    daemon: DaemonKind | None = None

    @property
    def is_lasting(self) -> bool:
        """True if its node always has such a pod."""
        return self.daemon is not None

    def counted_amount(self, what: CountedResource) -> int:
        """Return nano-units of what a quota counts."""
        side = self.limits if what.side == "limits" else self.requests
        return next((amount for name, amount in side if name == what.resource), 0)

    def gpu_units(self) -> tuple[tuple[str, int], ...]:
        """Return units of each GPU resource."""
        return _gpu_units_of(self.requests)

    def awaited_units(self) -> tuple[tuple[str, int], ...]:
        """Return units of each GPU resource and device class, and one of `CLAIMED_DEVICES` if it has claims."""
        units = _awaited_units_of(self.requests)
        return (*units, (CLAIMED_DEVICES, 1)) if self.claims else units


@request_cache(4096)
def _awaited_units_of(requests: ResourceAmounts) -> tuple[tuple[str, int], ...]:
    of_classes = ((name, -(-amount // NANO)) for name, amount in requests if name.startswith(DEVICE_CLASS_PREFIX))
    return (*_gpu_units_of(requests), *of_classes)


@request_cache(4096)
def _gpu_units_of(requests: ResourceAmounts) -> tuple[tuple[str, int], ...]:
    return tuple(count_gpu_units(requests).items())


def summarize_pod(
    pod: Pod, shared: Callable[[Pod], tuple[ResourceAmounts, ResourceAmounts]] | None = None
) -> PodSummary:
    """Return the summary of a pod that has not ended; `shared` returns amounts that may be known already."""
    requests, limits = (shared or pod_amounts)(pod)
    node = intern(pod.spec.node_name)
    requests_gpus = any(may_take_gpus(name) for name, _ in requests)
    best_effort = None
    if pod.spec.resources is None:
        best_effort = not any(name in ("cpu", "memory") for name, _ in (*requests, *limits))
    kind = scope_attributes(pod, best_effort=best_effort)
    may_wait = requests_gpus or bool(pod.spec.resource_claims)
    constraints = _kept_constraints(pod) if may_wait and not node else None
    claims = pod_claim_uses(pod) if pod.spec.resource_claims else ()
    nominated = intern(nominated_node(pod))
    gated, volumes = bool(pod.spec.scheduling_gates) and not nominated, _stored_volumes(pod)
    disks = inline_disks(pod) if node and pod.spec.volumes else ()
    group = group_of_pod(pod)
    counted = (group,) if node or not (gated or group.terminating) else ()
    ties = (*counted, *required_anti_affinity(pod, identity_of(pod)), *held_ports(pod))
    daemon = daemon_kind(pod, requests)
    return PodSummary(node, requests, limits, constraints, kind, claims, ties, gated, volumes, nominated, disks, daemon)


def pod_claim_uses(pod: Pod) -> tuple[PodClaimUse, ...]:
    """Return the claims of a pod."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    return tuple(
        PodClaimUse(intern(one.resource_claim_template_name), one.resource_claim_name or made.get(one.name, ""))
        for one in pod.spec.resource_claims
    )


def _stored_volumes(pod: Pod) -> PodVolumes:
    uses = pod_volumes(pod)
    return tuple(VolumeUse(use.claim) for use in uses if use.claim) if uses and pod.spec.node_name else uses


def pod_amounts(pod: Pod) -> tuple[ResourceAmounts, ResourceAmounts]:
    """Return a pod's requests, and its limits of the resources whose limits quotas count."""
    limits = ((name, effective_amount(pod, name, limits=True)) for name in ("cpu", "memory", "ephemeral-storage"))
    return tuple(effective_requests(pod).items()), tuple((name, amount) for name, amount in limits if amount)


def node_constraints(pod: Pod) -> NodeConstraints:
    """Return where a pod may run, taints aside."""
    return _shared_constraints(tuple(sorted(pod.spec.node_selector.items())), required_terms(pod.spec))


_shared_constraints = request_cache(1024)(NodeConstraints)
"""Pods of one workload share their constraints."""


def _kept_constraints(pod: Pod) -> NodeConstraints:
    """Return the constraints of a pod of the cluster. One with too many counts as if it may run on every node."""
    spec = pod.spec
    size = len(msgspec.json.encode((spec.node_selector, required_terms(spec))))
    return node_constraints(pod) if size <= MAX_CONSTRAINT_BYTES else NodeConstraints()


def allowed_nodes(where: NodeConstraints, fleet: Fleet) -> int:
    """Return the mask of the allowed nodes."""
    if not where.labels and where.terms is None:
        return fleet.all_nodes
    return fleet.select_nodes(dict(where.labels), where.terms)
