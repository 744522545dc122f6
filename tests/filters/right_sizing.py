"""Random worlds as right-sizing and injection leave them, and which pods bind there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from tests.builders import Json
from tests.engine.test_fit import sizing
from tests.example_cluster import NO_USAGE, NOW, apply_patch, policies_of, policy, request_of, view_of
from tests.filters.device_comparison import TIMEOUT_MESSAGE
from tests.filters.quota_admission import CreatedObjects, QuotaAdmission, QuotaAnswer
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import NAMESPACE
from tests.filters.random_worlds import claims_of, is_new_claim
from tests.filters.scheduler import CONFIGURATION, WHOLE_SCHEDULER, SchedulerAnswer
from webhook.engine.decide import decide
from webhook.model.claims import EXTENDED_RESOURCE_CLAIM, ResourceClaim
from webhook.model.cluster_view import ClusterView
from webhook.policy.policy_set import PolicySet

TOLERATIONS = "injection: {tolerations: auto}"
AFFINITY = "injection: {tolerations: auto, nodeAffinity: {required: [{key: rack, operator: In, values: [a]}]}}"
"""The affinity that a policy requires may leave nodes that are full now: only where all devices are free, it keeps no
pod Pending."""

REQUEST_OF_CONTAINER = re.compile(r"container-(\d+)-request-(\d+)$")
"""A request in the claim that the scheduler makes: the index of a container, and of one of its resources by name."""


class Binding(NamedTuple):
    """How a pod can be bound.

    Attributes:
        node: A node that passes all filters; "" if the pod waits for one.
        devices: The devices that each claim gets there.
        creates: What quotas must admit: its claims, the pod, and the claim that the scheduler makes for it.
    """

    node: str
    devices: Sequence[Sequence[Json]]
    creates: Sequence[Json]

    def allocated_claims(self) -> Iterator[Json]:
        """Yield the claims with their devices."""
        claims = [each for each in self.creates if each["kind"] == "ResourceClaim"]
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.node]}]}]
        for claim, results in zip(claims, self.devices, strict=True):
            allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
            about = claim["metadata"] | {"uid": f"uid-{claim['metadata']['name']}"}
            yield claim | {"metadata": about, "status": {"allocation": allocation}}


class PodBindings(NamedTuple):
    """What becomes of a pod.

    Attributes:
        pending: The verdict of the quotas on its claims and on the pod.
        bound: How it can be bound, with their verdict, which then admits also the claim that the scheduler makes.
    """

    pending: QuotaAnswer
    bound: Sequence[tuple[Binding, QuotaAnswer]]


def right_sized(cluster: RandomCluster) -> RandomCluster:
    """Return the world with the claims, and those pods that change or have such claims, as right-sizing leaves them.

    Each pod is alone: no other pod or claim waits for devices.
    """
    is_free = not any("allocation" in each.get("status", {}) for each in cluster.objects)
    policies = sizing_policies(with_affinity=is_free)
    alone = view_of_objects(each for each in cluster.objects if not is_new_claim(each))
    objects = [admitted(each, policies, alone) if is_new_claim(each) else each for each in cluster.objects]
    with_claims = _with_claims(alone, filter(is_new_claim, objects))
    pods = [admitted(each, policies, with_claims if claims_of(each) else alone) for each in cluster.pods]
    changed = changed_claims(cluster.objects, objects)
    pairs = zip(cluster.pods, pods, strict=True)
    return RandomCluster(objects, [pod for old, pod in pairs if pod != old or not changed.isdisjoint(claims_of(pod))])


def _with_claims(view: ClusterView, claims: Iterable[Json]) -> ClusterView:
    """Return a view with more claims, which do not wait for devices."""
    known = view.devices.claims.get(NAMESPACE, {})
    new = {each["metadata"]["name"]: msgspec.convert(each, ResourceClaim) for each in claims}
    return view.with_devices(view.devices._replace(claims={NAMESPACE: {**known, **new}}))


@cache
def sizing_policies(*, with_affinity: bool) -> PolicySet:
    """Return policies that enforce right-sizing."""
    return policies_of(policy(f"{sizing()}\n{AFFINITY if with_affinity else TOLERATIONS}"))


def view_of_objects(objects: Iterable[Json]) -> ClusterView:
    """Return the view of a cluster of Kubernetes 1.36."""
    return view_of(*(each for each in objects if each["kind"] != CONFIGURATION)).with_api_minor(36)


def admitted(data: Json, policies: PolicySet, view: ClusterView) -> Json:
    """Return an object as the webhook leaves it."""
    return apply_patch(data, decide(request_of(data), policies, view, NO_USAGE, NOW))


def changed_claims(before: Sequence[Json], after: Sequence[Json]) -> set[str]:
    """Return the names of the claims that right-sizing changed."""
    pairs = zip(before, after, strict=True)
    return {each["metadata"]["name"] for each, other in pairs if each != other}


def bindings_by_pod(
    worlds: Sequence[tuple[RandomCluster, SchedulerAnswer]], quotas: QuotaAdmission
) -> list[dict[str, PodBindings]]:
    """Return how each pod of each world can be bound, by the scheduler and by the quotas.

    Args:
        worlds: The worlds, with the scheduler's answers.
        quotas: The API server's quota admission.
    """
    found = [
        {pod["metadata"]["name"]: list(_bindings(world, pod, answer)) for pod in world.pods} for world, answer in worlds
    ]
    creates = [
        CreatedObjects(world, {f"{name} {one.node}": one.creates for name, some in pods.items() for one in some})
        for (world, _), pods in zip(worlds, found, strict=True)
    ]
    return [
        {name: _admitted_bindings(name, some, verdicts) for name, some in pods.items()}
        for pods, verdicts in zip(found, quotas.answers(creates), strict=True)
    ]


def _admitted_bindings(name: str, bindings: Sequence[Binding], verdicts: Mapping[str, QuotaAnswer]) -> PodBindings:
    pending, *others = [(one, verdicts[f"{name} {one.node}"]) for one in bindings]
    return PodBindings(pending[1], [each for each in others if each[1].admits_all])


def _bindings(world: RandomCluster, pod: Json, answer: SchedulerAnswer) -> Iterator[Binding]:
    """Yield the pod without a node; then a node for each different claim that the scheduler would make.

    An error on one node ends scheduling of the pod on all.
    """
    name, seen = pod["metadata"]["name"], list[Json | None]()
    allocations, rejections = answer.allocations[name], answer.rejections[name]
    stored = {each["metadata"]["name"]: each for each in world.objects if each["kind"] == "ResourceClaim"}
    claims = [stored[each] for each in dict.fromkeys(claims_of(pod)) if is_new_claim(stored[each])]
    known = pod | {"metadata": pod["metadata"] | {"uid": name}}
    yield Binding("", (), [*claims, known])
    if any(each.get("error") for each in allocations.values()):
        return
    for node in sorted(set(allocations) - {node for node, plugins in rejections.items() if WHOLE_SCHEDULER in plugins}):
        devices = allocations[node].get("claims") or ()
        made = claim_of_scheduler(world, pod, [each for some in devices for each in some])
        if made not in seen:
            seen.append(made)
            yield Binding(node, devices, [*claims, known, *([made] if made else [])])


def claim_of_scheduler(world: RandomCluster, pod: Json, results: Sequence[Json]) -> Json | None:
    """Return the claim that the scheduler makes for the extended resources of a pod, from its allocated devices."""
    counts: dict[str, int] = {}
    for each in results:
        if REQUEST_OF_CONTAINER.match(each["request"]):
            counts[each["request"]] = counts.get(each["request"], 0) + 1
    if not counts:
        return None
    name, served = pod["metadata"]["name"], _class_by_resource(world)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
    about = {"annotations": {EXTENDED_RESOURCE_CLAIM: "true"}, "ownerReferences": [owner], "uid": f"{name}-0"}
    requests = [
        {"name": request, "exactly": {"deviceClassName": served[_resource_of(pod, request)], "count": count}}
        for request, count in counts.items()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-extended-resources-0", "namespace": NAMESPACE, **about},
        "spec": {"devices": {"requests": requests}},
    }


def _resource_of(pod: Json, request: str) -> str:
    """Return the extended resource of a request in the scheduler's claim."""
    match = REQUEST_OF_CONTAINER.match(request)
    assert match
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    names: list[str] = sorted(containers[int(match[1])]["resources"]["limits"])
    return names[int(match[2])]


def _class_by_resource(world: RandomCluster) -> Mapping[str, str]:
    return view_of(*world.of_kind("DeviceClass")).devices.class_by_resource


def is_slow(answer: SchedulerAnswer, pod: str) -> bool:
    """Return whether a search for devices took too long, as on a busy machine: then it is not known who binds."""
    return TIMEOUT_MESSAGE in json.dumps([answer.allocations[pod], answer.rejections[pod]])
