"""Every pod that the scheduler could bind as it was submitted it can bind after right-sizing and injection."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from tests.builders import Json, make_namespace
from tests.device_builders import device_class
from tests.engine.test_fit import sizing
from tests.example_cluster import GPU_TAINT, apply_patch, review, view_of
from tests.filters.device_comparison import TIMEOUT_MESSAGE
from tests.filters.device_selection import NVIDIA
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import NAMESPACE, random_devices
from tests.filters.scheduler import SchedulerAnswer, SchedulerFilters
from webhook.model.claims import (
    CLAIM_COUNT_KEY,
    EXTENDED_RESOURCE_CLAIM,
    ClaimSpec,
    claim_charge,
    claim_of_class,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX

CLUSTERS = max(100, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 200)
"""5,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "right-sized devices")
BATCH_SIZE = 50
BY_NAME = 5
"""Pods of each cluster that request a GPU by the name of a resource; the others have a claim."""

TAINTED_SHARE = 0.2
"""Share of nodes with the taint of GPU nodes, which injection tolerates."""

TOLERATIONS = "injection: {tolerations: auto}"
AFFINITY = "injection: {tolerations: auto, nodeAffinity: {required: [{key: rack, operator: In, values: [a]}]}}"
"""The affinity that a policy requires may leave nodes that are full now: only where all devices are free, it keeps no
pod Pending."""

WHOLE_SCHEDULER = ""
CONFIGURATION = "KubeSchedulerConfiguration"
NEEDS = ("4Gi", "8Gi", "9500Mi", "16Gi", "30Gi")
PROFILES = ("1g.10gb", "2g.20gb", "4g.40gb")


def test_every_pod_that_binds_without_right_sizing_binds_with_it(device_scheduler: SchedulerFilters) -> None:
    bound = Counter[str]()
    for begin in range(0, CLUSTERS, BATCH_SIZE):
        submitted = [_sizable(Random(f"{SEED} {begin + number}")) for number in range(BATCH_SIZE)]
        sized = [_right_sized(each) for each in submitted]
        answers = device_scheduler.answers([*submitted, *sized])
        found = list(answers)
        for before, after, of_submitted, of_sized in zip(submitted, sized, found, found[BATCH_SIZE:], strict=False):
            for pod, other in zip(before.pods, after.pods, strict=True):
                name = pod["metadata"]["name"]
                is_bound = _binds(of_submitted, name)
                is_bound_now = _binds(of_sized, name)
                bound["pods"] += is_bound and pod["spec"]["containers"] != other["spec"]["containers"]
                bound["affinities"] += is_bound and "affinity" in other["spec"]
                bound["tolerations"] += not is_bound and is_bound_now and "tolerations" in other["spec"]
                bound["claims"] += is_bound and not _claims_of(pod).isdisjoint(_changed_claims(before, after))
                is_harmed = is_bound and not is_bound_now and not _is_slow(of_sized, name)
                assert not is_harmed, f"{name}\n{json.dumps([*before.objects, *before.pods])}\n{json.dumps(other)}"
    assert min(bound[each] for each in ("pods", "claims", "affinities", "tolerations")) > CLUSTERS / 20, bound


WORLDS = max(12, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 2000)
"""Clusters in which pods are created one after the other; 500 for a million."""

LOG = logging.getLogger(__name__)
PATIENT = {"profiles": [{"pluginConfig": [{"name": "DynamicResources", "args": {"filterTimeout": "3s"}}]}]}
"""Searches for devices may take long: what binds decides about the pods after it."""


def test_pods_created_one_after_the_other_lose_devices_to_other_pods_only(device_scheduler: SchedulerFilters) -> None:
    untouched, sized = ([_GrowingCluster(f"{SEED} {number}") for number in range(WORLDS)] for _ in range(2))
    counts = Counter[str]()
    for place in range(len(untouched[0].pods)):
        new = [each.admit(place) for each in sized]
        worlds = [each.with_pod(each.pods[place], each.claims) for each in (*untouched, *sized)]
        worlds += [each.with_pod(*one) for each, one in zip(sized, new, strict=True)]
        answers = list(device_scheduler.answers(worlds))
        for number, (pod, claims) in enumerate(new):
            name, found = pod["metadata"]["name"], answers[number::WORLDS]
            submitted = sized[number].pods[place], sized[number].claims
            fits = untouched[number].fits(*submitted), sized[number].fits(*submitted), sized[number].fits(pod, claims)
            before, as_submitted, after = (
                _binds(answer, name) and is_fitting for answer, is_fitting in zip(found, fits, strict=True)
            )
            assert after or not as_submitted or any(_is_slow(answer, name) for answer in found), json.dumps(pod)
            counts.update(untouched=before, sized=after, lost=before and not after, gained=after and not before)
            is_changed = (pod, claims) != (submitted[0], {each: submitted[1][each] for each in claims})
            counts.update(over_quota=not fits[2], sized_within_quota=bool(after and sized[number].hard and is_changed))
            if before:
                untouched[number].bind(untouched[number].pods[place], untouched[number].claims, found[0])
            if after:
                sized[number].bind(pod, claims, found[2])
            elif fits[2]:
                sized[number].wait(pod, claims)
    LOG.info("%s", dict(counts))
    assert counts["gained"] > counts["lost"], counts
    assert min(counts["over_quota"], counts["sized_within_quota"]) > 0, counts


class _GrowingCluster:
    """A cluster in which pods are created one after the other.

    Attributes:
        pods: The pods as they are submitted.
        claims: Their claims by name.
        stored: Everything else, and pods and claims that have devices.
        waiting: Pods without a node, and their claims.
        hard: The quota of the namespace.
        used: What it has been charged.
    """

    def __init__(self, seed: str) -> None:
        cluster = _sizable(Random(seed))
        self.pods = cluster.pods
        self.claims = {each["metadata"]["name"]: each for each in cluster.objects if _is_new_claim(each)}
        self.stored = [
            each | PATIENT if each["kind"] == CONFIGURATION else each
            for each in cluster.objects
            if not _is_new_claim(each)
        ]
        self.waiting: list[Json] = []
        self.hard = _random_quota(Random(f"{seed} quota"), self.stored)
        self.used = Counter[str]()
        self._devices = self._view().devices

    def fits(self, pod: Json, claims: Mapping[str, Json]) -> bool:
        """Return whether the quota admits a pod, its claims, and the claim that the scheduler makes for it."""
        charged = self._charge(pod, claims)
        return all(self.used[key] + charged[key] <= limit for key, limit in self.hard.items())

    def _charge(self, pod: Json, claims: Mapping[str, Json]) -> Counter[str]:
        """Return what a quota is charged; the scheduler's claim counts once with its pod."""
        classes, served, charged = self._devices.classes, self._devices.class_by_resource, Counter[str]()
        for name in _claims_of(pod):
            charged.update(claim_charge(msgspec.convert(claims[name]["spec"], ClaimSpec), classes))
        for name in _limits_of(pod):
            if name in served:
                charged.update(claim_charge(claim_of_class(served[name]), classes))
            charged[f"requests.{name}"] = 1
        return charged

    def wait(self, pod: Json, claims: Mapping[str, Json]) -> None:
        """Store a pod without a node."""
        self.used += self._charge(pod, claims)
        self.waiting += [pod, *claims.values()]

    def admit(self, place: int) -> tuple[Json, dict[str, Json]]:
        """Return a pod and its claims as right-sizing leaves them."""
        pod, policy, claims = self.pods[place], f"{sizing()}\n{TOLERATIONS}", dict[str, Json]()
        for name in _claims_of(pod):
            claims[name] = _admitted(self.claims[name], policy, self._view())
        return _admitted(pod, policy, self._view(*claims.values())), claims

    def _view(self, *more: Json) -> ClusterView:
        stored = (each for each in self.stored if each["kind"] != CONFIGURATION)
        used = {key: str(self.used[key]) for key in self.hard}
        hard = {key: str(limit) for key, limit in self.hard.items()}
        about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota", "namespace": NAMESPACE}}
        quota = about | {"spec": {"hard": hard}, "status": {"hard": hard, "used": used}}
        return view_of(*stored, *self.waiting, quota, *more).with_api_minor(36)

    def with_pod(self, pod: Json, claims: Mapping[str, Json]) -> RandomCluster:
        """Return the cluster in which the scheduler looks for a node for a pod."""
        return RandomCluster([*self.stored, *(claims[name] for name in _claims_of(pod))], [pod])

    def bind(self, pod: Json, claims: Mapping[str, Json], answer: SchedulerAnswer) -> None:
        """Store a pod on the first node that takes it, with the devices that it gets there."""
        self.used += self._charge(pod, claims)
        name = pod["metadata"]["name"]
        allocations, rejections = answer.allocations[name], answer.rejections[name]
        node = next(each for each in sorted(allocations) if WHOLE_SCHEDULER not in rejections.get(each, {}))
        own = [claims[each] for each in _claims_of(pod)] or [_claim_of_scheduler(name)]
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        for claim, results in zip(own, allocations[node].get("claims") or (), strict=False):
            allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
            about = claim["metadata"] | {"uid": f"uid-{claim['metadata']['name']}"}
            self.stored.append(claim | {"metadata": about, "status": {"allocation": allocation}})
        if not _claims_of(pod):
            self.stored.append(pod | {"spec": pod["spec"] | {"nodeName": node}})


def _random_quota(random: Random, objects: Sequence[Json]) -> dict[str, int]:
    """Return a quota of devices of some classes, or of claims; in half of the clusters none."""
    classes = [each["metadata"]["name"] for each in objects if each["kind"] == "DeviceClass"]
    keys = [f"{name}.deviceclass.resource.k8s.io/devices" for name in classes]
    keys += [f"requests.{DEVICE_CLASS_PREFIX}{name}" for name in classes]
    keys += ["requests.nvidia.com/gpu", CLAIM_COUNT_KEY]
    count = random.choice((0, 0, 1, 2, 4))
    return {key: random.randint(0, 5) for key in random.sample(keys, k=min(count, len(keys)))}


def _limits_of(pod: Json) -> list[str]:
    return [name for each in pod["spec"]["containers"] for name in each.get("resources", {}).get("limits", ())]


def _claim_of_scheduler(pod: str) -> Json:
    """Return the claim that the scheduler makes for a pod that requests an extended resource."""
    request = {"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{pod}-0", "namespace": NAMESPACE, "annotations": {EXTENDED_RESOURCE_CLAIM: "true"}},
        "spec": {"devices": {"requests": [request]}},
    }


def _sizable(random: Random) -> RandomCluster:
    """Return a cluster in which pods request one GPU, by name or by claim, and need less; classes have the slices."""
    cluster = random_devices(random)
    objects = [make_namespace(NAMESPACE), *cluster.objects]
    for node in (each for each in objects if each["kind"] == "Node"):
        node["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.3"}
        if random.random() < TAINTED_SHARE:
            node["spec"]["taints"] = [GPU_TAINT]
    attributes = f"device.attributes['{NVIDIA}']"
    for profile in random.sample(PROFILES, k=random.randint(0, 3)):
        condition = f"device.driver == '{NVIDIA}' && 'profile' in {attributes} && {attributes}.profile == '{profile}'"
        objects.append(device_class(profile.replace(".", "-"), condition))
    by_name, by_claim = cluster.pods[:BY_NAME], cluster.pods[BY_NAME:]
    for pod in by_name:
        pod["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": random.choice(NEEDS)}
        pod["spec"] = {"containers": [{"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    for pod in by_claim:
        pod["spec"] = {"containers": [{"name": "main", "image": "a"}]} | _claim_reference(pod["metadata"]["name"])
        objects.append(_claim(random, pod["metadata"]["name"]))
    if random.random() < 0.5:
        objects = [each for each in objects if "allocation" not in each.get("status", {})]
    named = {each["resourceClaimName"] for pod in cluster.pods for each in pod["spec"].get("resourceClaims", ())}
    kept = [each for each in objects if not _is_new_claim(each) or each["metadata"]["name"] in named]
    return RandomCluster(kept, cluster.pods)


def _right_sized(cluster: RandomCluster) -> RandomCluster:
    """Return the cluster with every new object as right-sizing leaves it."""
    stored = (each for each in cluster.objects if each["kind"] != CONFIGURATION)
    view = view_of(*stored).with_api_minor(36)
    is_free = not any("allocation" in each.get("status", {}) for each in cluster.objects)
    policy = f"{sizing()}\n{AFFINITY if is_free else TOLERATIONS}"
    objects = [_admitted(each, policy, view) if _is_new_claim(each) else each for each in cluster.objects]
    return RandomCluster(objects, [_admitted(pod, policy, view) for pod in cluster.pods])


def _claim(random: Random, name: str) -> Json:
    """Return a claim for a GPU that declares a smaller need."""
    device_class, memory = random.choice(("gpu", "gpu", "nvidia", "mig")), random.choice(NEEDS)
    exactly: Json = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    if random.random() < 0.4:
        bound = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity('{memory}')) >= 0"
        exactly["selectors"] = [{"cel": {"expression": bound}}]
    annotations = {"rightslice.dev/gpu-memory": memory}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _claim_reference(name: str) -> Json:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


def _claims_of(pod: Json) -> set[str]:
    return {each["resourceClaimName"] for each in pod["spec"].get("resourceClaims", ())}


def _changed_claims(before: RandomCluster, after: RandomCluster) -> set[str]:
    """Return the names of the claims that right-sizing changed."""
    pairs = zip(before.objects, after.objects, strict=True)
    return {each["metadata"]["name"] for each, other in pairs if each != other}


def _is_new_claim(data: Json) -> bool:
    return bool(data["kind"] == "ResourceClaim" and "status" not in data)


def _admitted(data: Json, policy: str, view: ClusterView) -> Json:
    return apply_patch(data, review(data, policy, view=view))


def _binds(answer: SchedulerAnswer, pod: str) -> bool:
    """Return whether some node passes all filters, and none ends scheduling."""
    allocations, rejections = answer.allocations[pod], answer.rejections[pod]
    is_failed = any(each.get("error") for each in allocations.values())
    return not is_failed and any(WHOLE_SCHEDULER not in rejections.get(node, {}) for node in allocations)


def _is_slow(answer: SchedulerAnswer, pod: str) -> bool:
    """Return whether a search for devices took too long, as on a busy machine: then it is not known who binds."""
    return TIMEOUT_MESSAGE in json.dumps([answer.allocations[pod], answer.rejections[pod]])
