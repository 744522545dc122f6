"""Random namespaces and random pods: LimitRanges, and amounts in every notation in use."""

from __future__ import annotations

from random import Random
from typing import Any

Json = dict[str, Any]

GPUS = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "example.com/dongle")
COUNTS = ("0", "1", "1", "2", "2", "3", "4", "1000m", "2000m", "2.0", "1e0", "4e0", "+2", "02", "1k", "0.0")
CPUS = ("0", "100m", "250m", "0.5", "1", "1", "1500m", "1.5", "2", "2e0", "3", "4", "1e1", "0.1", "1u", "100u", "+1")
MEMORIES = ("0", "1Mi", "64Mi", "128Mi", "0.5Gi", "1Gi", "1Gi", "1024Mi", "1.5Gi", "2Gi", "1e9", "1G", "500M", "4Gi",
            "1073741824", "100m", "123456789", "8Ei", "1.1Gi", "-0", "1025Ki")  # fmt: skip
ODD = ("-1", "500m", "1n", "9E", "", "many", "1Gi", "16GB", "1e", None)
RATIOS = ("1", "1", "2", "2.5", "1500m", "4", "10")


def amount(random: Random, resource: str) -> str | None:
    """Return an amount of a resource, rarely an unusual or invalid one."""
    if random.random() < 0.004:
        return random.choice(ODD)
    if resource == "cpu":
        return random.choice(CPUS)
    if resource in ("memory", "ephemeral-storage"):
        return random.choice(MEMORIES)
    if resource == "hugepages-2Mi":
        return random.choice(("0", "2Mi", "4Mi", "8Mi", "4194304"))
    return random.choice(COUNTS)


def resource_names(random: Random) -> list[str]:
    """Return the names of a few resources."""
    names = ("cpu", "cpu", "memory", "memory", "ephemeral-storage", *GPUS, "nvidia.com/gpu", "nvidia.com/gpu")
    return list(dict.fromkeys(random.choices(names, k=random.choice((0, 1, 1, 2, 2, 3)))))


def limit_range(random: Random, name: str) -> Json:
    """Return a LimitRange that an API server may or may not accept."""
    types = random.sample(("Container", "Container", "Pod", "PersistentVolumeClaim"), k=random.randint(1, 3))
    items = [_item(random, kind) for kind in dict.fromkeys(types)]
    return {"metadata": {"name": name}, "spec": {"limits": items}}


def _item(random: Random, kind: str) -> Json:
    if kind == "PersistentVolumeClaim":
        return {"type": kind, "max": {"storage": "1Gi"}}
    item: Json = {"type": kind}
    for side in ("max", "min", "default", "defaultRequest"):
        if (kind == "Container" or side in ("max", "min")) and random.random() < 0.4:
            item[side] = {name: amount(random, name) for name in resource_names(random)}
    if random.random() < 0.15:
        item["maxLimitRequestRatio"] = {name: random.choice(RATIOS) for name in resource_names(random)}
    return item


def pod(random: Random, name: str) -> Json:
    """Return a pod that an API server may or may not accept."""
    resource_probability = random.random()
    spec: Json = {
        "containers": [
            _container(random, f"c{i}", resource_probability) for i in range(random.choice((1, 1, 1, 2, 2, 3, 6)))
        ]
    }
    if random.random() < 0.35:
        count = random.choice((1, 1, 2, 3))
        spec["initContainers"] = [_init_container(random, f"i{i}", resource_probability) for i in range(count)]
    if random.random() < 0.12:
        spec["resources"] = resources(random, ["cpu", "memory", "hugepages-2Mi"][: random.randint(1, 3)])
        if random.random() < 0.3:  # the API server adds these before it rounds them
            for container in spec["containers"]:
                container["resources"] = {"requests": {"cpu": random.choice(("1u", "100u", "1500u", "2n", "1m"))}}
    return {"metadata": {"name": name}, "spec": spec}


def _container(random: Random, name: str, resource_probability: float) -> Json:
    container: Json = {"name": name, "image": "example.com/app:1"}
    if random.random() < 0.3 + 0.7 * resource_probability:
        container["resources"] = resources(random, resource_names(random))
    return container


def _init_container(random: Random, name: str, resource_probability: float) -> Json:
    container = _container(random, name, resource_probability)
    return container | {"restartPolicy": "Always"} if random.random() < 0.4 else container


def resources(random: Random, names: list[str]) -> Json:
    """Return limits and requests that are mostly consistent."""
    limits: Json = {}
    requests: Json = {}
    for name in names:
        kind, limit = random.random(), amount(random, name)
        if kind < 0.75 or name not in ("cpu", "memory", "ephemeral-storage"):
            limits[name] = limit
        if kind > 0.5:
            independent = name in ("cpu", "memory", "ephemeral-storage") or random.random() < 0.04
            requests[name] = amount(random, name) if independent else limit
    return {side: amounts for side, amounts in (("limits", limits), ("requests", requests)) if amounts}


KEYS = (
    "cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "requests.ephemeral-storage",
    "limits.ephemeral-storage", "pods", "count/pods", "count/configmaps", "requests.hugepages-2Mi", "hugepages-2Mi",
    *(f"requests.{name}" for name in GPUS), "requests.nvidia.com/gpu", "requests.nvidia.com/gpu",
    "limits.nvidia.com/gpu", "nvidia.com/gpu", "requests.storage",
)  # fmt: skip
SCOPES = ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
PRIORITIES = ("low", "high", "usual")
RUNTIME_CLASSES = ("kata", "plain")
OVERHEAD = {"cpu": "250m", "memory": "120Mi"}


def quota(random: Random, name: str) -> Json:
    """Return a ResourceQuota that an API server may or may not accept."""
    keys = list(dict.fromkeys(random.choices(KEYS, k=random.choice((1, 1, 2, 3, 4)))))
    spec: Json = {"hard": {key: _hard_limit(random, key) for key in keys}}
    if random.random() < 0.35:
        spec["scopes"] = random.sample(SCOPES, k=random.choice((1, 1, 2)))
    if random.random() < 0.2:
        spec["scopeSelector"] = {"matchExpressions": [_expression(random)]}
    return {"metadata": {"name": name}, "spec": spec}


def _expression(random: Random) -> Json:
    operator = random.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    if operator in ("In", "NotIn"):
        return {"scopeName": "PriorityClass", "operator": operator, "values": random.sample(PRIORITIES, k=1)}
    return {"scopeName": random.choice(SCOPES), "operator": operator}


def _hard_limit(random: Random, key: str) -> str | None:
    if key in ("pods", "count/pods", "count/configmaps"):
        return random.choice(("1", "2", "10"))
    resource = key.removeprefix("requests.").removeprefix("limits.")
    return random.choice(("0", "1", "2", "4", "8", "10")) if resource in GPUS else amount(random, resource)


def usage(random: Random, hard: Json) -> Json:
    """Return the usage of a quota: nothing, a part, all of it, or more."""
    return {key: random.choice(("0", "0", "0", "1", "2", limit)) for key, limit in hard.items()}


def with_quota_scope_fields(random: Random, pod: Json) -> Json:
    """Return the pod with random fields that quota scopes match, or that add an overhead."""
    spec = pod["spec"]
    if random.random() < 0.2:
        spec["runtimeClassName"] = random.choice(RUNTIME_CLASSES)
    if random.random() < 0.3:
        spec["activeDeadlineSeconds"] = random.choice((1, 60))
    if random.random() < 0.3:
        spec["priorityClassName"] = random.choice(PRIORITIES)
    if random.random() < 0.2:
        term: Json = {"topologyKey": "zone", "labelSelector": {}}
        namespaces: Json = random.choice(({"namespaces": ["other"]}, {"namespaceSelector": {}}, {}))
        preferred = [{"weight": 1, "podAffinityTerm": term | namespaces}]
        kind = random.choice(("podAffinity", "podAntiAffinity"))
        is_preferred = random.random() < 0.5
        spec["affinity"] = {
            kind: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
            if is_preferred
            else {"requiredDuringSchedulingIgnoredDuringExecution": [term | namespaces]}
        }
    return pod
