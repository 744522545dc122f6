"""Random worlds: clusters with devices, taints, quotas, and pods of which right-sizing changes some.

What is compared with the scheduler and with quotas, and whether right-sizing harms a pod, is tested on the same worlds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from random import Random

from tests.builders import Json, make_namespace
from tests.device_builders import device_class
from tests.example_cluster import GPU_TAINT
from tests.filters.device_selection import NVIDIA
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import NAMESPACE, random_devices
from webhook.model.claims import CLAIM_COUNT_KEY
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX

WORLDS = max(300, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 200)
"""5,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "devices")
BY_NAME, BY_CLAIM = 3, 2
"""Pods of each world that request one GPU, by the name of a resource or by a claim, and declare that they need less."""

TAINTED_SHARE = 0.2
"""Share of nodes with the taint of GPU nodes, which injection tolerates."""

NEEDS = ("4Gi", "8Gi", "9500Mi", "16Gi", "30Gi")
PROFILES = ("1g.10gb", "2g.20gb", "4g.40gb")
HARD, USED = (0, 1, 1, 2, 2, 3, 4, 8, 33, 64), (0, 0, 0, 1, 1, 2)
"""Limits of quotas, and what they have counted; a claim for all devices counts 32."""


def random_worlds(seed: str, begin: int, count: int) -> list[RandomCluster]:
    """Return some of the worlds of a seed."""
    return [random_world(Random(f"{seed} {begin + number}")) for number in range(count)]


def random_world(random: Random) -> RandomCluster:
    """Return a world with 8 pods; in half of the worlds no device is allocated yet."""
    cluster = random_devices(random)
    objects = [make_namespace(NAMESPACE), *cluster.objects, *_classes_of_profiles(random)]
    for node in (each for each in objects if each["kind"] == "Node"):
        node["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.3"}
        if random.random() < TAINTED_SHARE:
            node["spec"]["taints"] = [GPU_TAINT]
    for claim in filter(is_new_claim, objects):
        claim["metadata"] |= _declared_need(random) if random.random() < 0.5 else {}
    objects += list(_sizable_pods(random, cluster.pods))
    named = {name for pod in cluster.pods for name in claims_of(pod)}
    is_free = random.random() < 0.5
    kept = [without_devices(each) if is_free else each for each in objects]
    kept = [each for each in kept if not is_new_claim(each) or each["metadata"]["name"] in named]
    return RandomCluster([*kept, *_quotas(random, kept)], cluster.pods)


def claims_of(pod: Json) -> list[str]:
    """Return the names of a pod's claims."""
    return [each["resourceClaimName"] for each in pod["spec"].get("resourceClaims", ())]


def is_new_claim(data: Json) -> bool:
    """Return whether an object is a claim without devices."""
    return bool(data["kind"] == "ResourceClaim" and "status" not in data)


def without_devices(data: Json) -> Json:
    """Return a claim without its devices; any other object as it is."""
    is_claim = data["kind"] == "ResourceClaim"
    return {key: value for key, value in data.items() if key != "status"} if is_claim else data


def _classes_of_profiles(random: Random) -> Iterator[Json]:
    attributes = f"device.attributes['{NVIDIA}']"
    for profile in random.sample(PROFILES, k=random.randint(0, 3)):
        condition = f"device.driver == '{NVIDIA}' && 'profile' in {attributes} && {attributes}.profile == '{profile}'"
        yield device_class(profile.replace(".", "-"), condition)


def _sizable_pods(random: Random, pods: Sequence[Json]) -> Iterator[Json]:
    """Let pods request one GPU and declare a smaller need; the others may declare one too. Yield new claims."""
    for number, pod in enumerate(pods):
        name = pod["metadata"]["name"]
        if number < BY_NAME + BY_CLAIM or random.random() < 0.5:
            pod["metadata"] |= _declared_need(random)
        if number < BY_NAME:
            limits = {"nvidia.com/gpu": "1"}
            pod["spec"] = {"containers": [{"name": "main", "image": "a", "resources": {"limits": limits}}]}
        elif number < BY_NAME + BY_CLAIM:
            claims = [{"name": "gpu", "resourceClaimName": name}]
            pod["spec"] = {"containers": [{"name": "main", "image": "a"}], "resourceClaims": claims}
            yield _sizable_claim(random, name)


def _sizable_claim(random: Random, name: str) -> Json:
    """Return a claim for a GPU that declares a smaller need."""
    class_name, memory = random.choice(("gpu", "gpu", "nvidia", "mig")), random.choice(NEEDS)
    exactly: Json = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": 1}
    if random.random() < 0.4:
        bound = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity('{memory}')) >= 0"
        exactly["selectors"] = [{"cel": {"expression": bound}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, **_declared_need(random)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _declared_need(random: Random) -> Json:
    return {"annotations": {"rightslice.dev/gpu-memory": random.choice(NEEDS)}}


def _quotas(random: Random, objects: Sequence[Json]) -> Iterator[Json]:
    """Yield one or two quotas of devices of some classes, or of claims, partly used; some have a scope."""
    keys = _quota_keys([each["metadata"]["name"] for each in objects if each["kind"] == "DeviceClass"])
    for number in range(random.choice((1, 1, 2))):
        hard = {key: str(random.choice(HARD)) for key in random.sample(keys, k=random.choice((1, 2, 4, 6)))}
        used = {key: str(random.choice(USED)) for key in hard}
        scopes = {"scopes": ["NotTerminating"]} if random.random() < 0.1 else {}
        yield {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": f"quota-{number}", "namespace": NAMESPACE},
            "spec": {"hard": hard, **scopes},
            "status": {"hard": hard, "used": used},
        }


def _quota_keys(classes: Sequence[str]) -> list[str]:
    keys = [f"{name}.deviceclass.resource.k8s.io/devices" for name in classes]
    keys += [f"requests.{DEVICE_CLASS_PREFIX}{name}" for name in classes]
    names = ("nvidia.com/gpu", "nvidia.com/gpu", "example.com/shared")
    return [*keys, *(f"requests.{name}" for name in names[1:]), CLAIM_COUNT_KEY, "pods"]
