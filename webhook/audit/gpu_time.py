"""The GPUs that are allocated to pods, and for how long, as far as existing pods show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from webhook.cache.stored_objects import FINISHED_PHASES, object_namespace
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.model.api_struct import ApiStruct
from webhook.model.claims import ResourceClaim
from webhook.model.dra.claim_weights import NO_CLUSTER_CLAIMS, ClusterClaims, weigh_saved_devices
from webhook.model.field_paths import map_at
from webhook.model.fleet import Fleet
from webhook.model.pod_outcomes import FullPodStatus
from webhook.model.pod_summary import PodClaimUse, summarize_pod
from webhook.model.pods import ObjectMeta, Pod, PodSpec, PodStatus, without_nulls
from webhook.policy.fair_share import BY_NAMESPACE, PodGpuTime
from webhook.well_known import Json

START_CONDITIONS = ("Initialized", "PodReadyToStartContainers")
"""Conditions that become true before the first container of a pod starts."""


class DeletableMetadata(ObjectMeta, frozen=True):
    """Metadata with the deletion time."""

    deletion_timestamp: datetime | None = None


class PodLifetime(ApiStruct, frozen=True):
    """A pod with its times."""

    metadata: DeletableMetadata
    spec: PodSpec
    status: FullPodStatus = FullPodStatus()

    @property
    def pod(self) -> Pod:
        """The pod without its times."""
        claims = self.status.resource_claim_statuses
        return Pod(self.metadata, self.spec, PodStatus(self.status.phase, resource_claim_statuses=claims))


class ClaimTotals(NamedTuple):
    """Thousandths of GPUs of a pod's claims.

    Attributes:
        milli: What they weigh.
        saved_milli: What right-sizing of the claims saved.
    """

    milli: int
    saved_milli: int = 0


NO_CLAIM_TOTALS = ClaimTotals(0)


class ClaimHolders:
    """Counts the claims of pods, each once: with the first pod that uses it."""

    def __init__(self, claims: ClusterClaims, fleet: Fleet) -> None:
        self._claims, self._fleet = claims, fleet
        self._counted: set[tuple[str, str]] = set()

    def claim_totals(self, load_pod: Callable[[], Pod]) -> ClaimTotals:
        """Return the GPUs of a pod's claims, without those that another pod had before.

        A pod that ended has the most that its templates give: its claims are gone, or others use them.

        Args:
            load_pod: Returns the pod with its status; called only in a cluster with claims, devices or classes.
        """
        if self._claims is NO_CLUSTER_CLAIMS:
            return NO_CLAIM_TOTALS
        pod = load_pod()
        summary, namespace = summarize_pod(pod), object_namespace(pod)
        claims = [one for one in summary.claims if not one.name or (namespace, one.name) not in self._counted]
        if pod.status.phase in FINISHED_PHASES:
            templates = self._claims.templates.get(namespace, {})
            claims = [PodClaimUse(one.template, "") for one in summary.claims if one.template in templates]
        self._counted |= {(namespace, one.name) for one in claims if one.name}
        weight = self._claims.weigh_pod(namespace, msgspec.structs.replace(summary, claims=tuple(claims)), self._fleet)
        known = self._claims.in_namespace(namespace).claims
        saved = [self._saved_milli(known[one.name]) for one in claims if one.name in known]
        return ClaimTotals(sum([milli for _, milli in weight]), sum(saved))

    def _saved_milli(self, claim: ResourceClaim) -> int:
        return weigh_saved_devices(claim, self._claims.devices, self._fleet)


def gpu_time_of_pods(
    pods: Iterable[Json], fleet: Fleet, by: str, skip: Callable[[str], None], claims: ClusterClaims = NO_CLUSTER_CLAIMS
) -> Iterator[PodGpuTime]:
    """Yield the GPU time of each pod with a start time and an existing node; others have no GPUs.

    Args:
        pods: Pods as in the API, including ended ones.
        fleet: The nodes, which determine the size of slices and shares.
        by: "namespace", or the label that names a group.
        skip: Called with the reason why a pod is not counted: it cannot be read, or has no end time.
        claims: The claims of the cluster, which count with the first pod that uses them.
    """
    holders = ClaimHolders(claims, fleet)
    for data in pods:
        try:
            lifetime = msgspec.convert(without_nulls(data), PodLifetime)
        except (msgspec.ValidationError, RecursionError) as error:
            skip(f"pod {_pod_title(data)} is not counted: {error}")
            continue
        if (gpu_time := gpu_time_of_pod(lifetime, fleet, by, holders)) is not None:
            if _end_time(lifetime) is None:
                skip(f"pod {_pod_title(data)} counts as 0 GPU-hours: it ended and has no end time")
            yield gpu_time


def _pod_title(data: Json) -> str:
    metadata = map_at(data, "metadata")
    return f"{metadata.get('namespace', 'default')}/{metadata.get('name', '(no name)')}"


def gpu_time_of_pod(
    lifetime: PodLifetime, fleet: Fleet, by: str, holders: ClaimHolders | None = None
) -> PodGpuTime | None:
    """Return the GPU time of one pod; None if it has no GPUs.

    A pod that ended and has no end time counts as having ended when it started.
    """
    start, node = lifetime.status.start_time, lifetime.spec.node_name
    if start is None or node not in fleet.by_name:
        return None
    milli = allocated_milli(gpu_requests_of_pod(lifetime.pod).totals, node, fleet)
    milli += holders.claim_totals(lambda: lifetime.pod).milli if holders is not None else 0
    begin, end = start.timestamp(), _end_time(lifetime)
    end = begin if end is None else end
    return PodGpuTime(fair_share_group(lifetime.pod, by), milli, begin, end) if milli else None


def fair_share_group(pod: Pod, by: str) -> str:
    """Return the group of a pod: its namespace, or the value of a label; "" if it has none."""
    return object_namespace(pod) if by == BY_NAMESPACE else pod.metadata.labels.get(by, "")


def _end_time(lifetime: PodLifetime) -> float | None:
    """Return when a pod ended; 0 if it has not, None if that is unknown.

    If some containers have no end time, as after an eviction or the loss of a node, other signs are used that are later
    than everything that shows it running.
    """
    status = lifetime.status
    if status.phase not in FINISHED_PHASES:
        return 0
    ended = [one.state.terminated for one in status.container_statuses if one.state.terminated]
    known = [one.finished_at.timestamp() for one in ended if one.finished_at is not None]
    if known and len(known) == len(ended):
        return max(known)
    started = [*_timestamps(status.start_time), *_transition_times(status, "True", START_CONDITIONS)]
    running = max([*known, *started], default=0.0)
    later_signs = ([sign for sign in signs if sign > running] for signs in _end_signs(lifetime))
    return next((min(signs) for signs in later_signs if signs), max(known, default=None))


def _end_signs(lifetime: PodLifetime) -> Iterator[list[float]]:
    """Yield times that show the end of a pod, the most reliable first. A pod may also run without being ready."""
    status = lifetime.status
    yield [
        *_transition_times(status, "True", ("DisruptionTarget",)),
        *_transition_times(status, "False", ("PodReadyToStartContainers",)),
    ]
    yield [
        *_transition_times(status, "False", ("Ready", "ContainersReady")),
        *_timestamps(lifetime.metadata.deletion_timestamp),
    ]


def _transition_times(status: FullPodStatus, value: str, kinds: Iterable[str]) -> list[float]:
    found = (one.last_transition_time for one in status.conditions if one.type in kinds and one.status == value)
    return _timestamps(*found)


def _timestamps(*moments: datetime | None) -> list[float]:
    return [moment.timestamp() for moment in moments if moment is not None]


def bound_node(pod: Mapping[str, Any]) -> str:
    """Return the name of the node that a pod is bound to; "" if it is pending."""
    name = map_at(pod, "spec").get("nodeName")
    return name if isinstance(name, str) else ""


def allocated_milli(totals: Mapping[str, int], node: str, fleet: Fleet) -> int:
    """Return the thousandths of whole cards that a pod has on its node.

    `nvidia.com/gpu` is a whole card on one node, and a MIG instance or a share on another. It counts as a whole card if
    the node does not advertise it, or is not in the fleet.

    Args:
        totals: Requested units by resource name.
    """
    node_mask = 1 << fleet.by_name[node] if node in fleet.by_name else 0
    total = 0
    for name, count in totals.items():
        offered = [offer.gpu_milli for offer in fleet.by_resource.get(name, ()) if offer.nodes & node_mask]
        total += count * max(offered, default=fleet.unit_milli(name))
    return total
