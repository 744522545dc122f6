"""Random clusters with devices: slices in the layouts of drivers, device classes, and claims with and without devices.

NVIDIA's driver publishes MIG devices that exist, or with counters all that could be made; AMD's has partitions; other
drivers have devices that claims share, and devices that several nodes can use. Some pools are incomplete, outdated or
invalid, some claims hold more than there is. All objects are valid for the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.builders import Json
from tests.filters.device_selection import AMD, CLASSES, FABRIC, NVIDIA, SELECTORS, SHARED
from tests.filters.random_clusters import RandomCluster

NAMESPACE = "team-a"

MIG_STARTS = {"1g.10gb": (1, (0, 1, 2, 3)), "2g.20gb": (2, (0, 2)), "4g.40gb": (4, (0,))}
"""Memory slices of a profile, and where it can start, on a card with four of them."""

MEMORIES = {"1g.10gb": "9850Mi", "2g.20gb": "19968Mi", "4g.40gb": "40192Mi"}

SELECTORS_OF_CLASS = {
    "gpu": (*SELECTORS[:5], SELECTORS[7]),
    "mig": SELECTORS[:7],
    "unguarded": SELECTORS[:2],
    "nvidia": SELECTORS[:7],
    "amd": SELECTORS[8:10],
    "shared": SELECTORS[10:12],
    "fabric": SELECTORS[12:13],
    "any": SELECTORS[13:],
}
ATTRIBUTES = {
    "gpu": ("resource.kubernetes.io/pcieRoot", f"{NVIDIA}/productName", f"{NVIDIA}/index"),
    "mig": (f"{NVIDIA}/parentUUID", f"{NVIDIA}/profile", "resource.kubernetes.io/pcieRoot"),
    "amd": (f"{AMD}/type", f"{AMD}/parent"),
    "fabric": (f"{FABRIC}/speed", "resource.kubernetes.io/pcieRoot"),
}
CAPACITIES = {"gpu": "memory", "mig": "memory", "amd": "memory", "shared": "memory", "fabric": "bandwidth"}
AMOUNTS = ("5Gi", "9500Mi", "10Gi", "20Gi", "30Gi", "64Gi")
SHORT_TIMEOUT = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"pluginConfig": [{"name": "DynamicResources", "args": {"filterTimeout": "100ms"}}]}],
}
"""Searches that would take long end after a tenth of a second."""

TAINT = {"key": "example.com/health", "value": "bad"}
TOLERATIONS: tuple[Json, ...] = (
    {"operator": "Exists"},
    {**TAINT, "operator": "Equal"},
    {"key": TAINT["key"], "operator": "Exists", "effect": "NoSchedule"},
    {**TAINT, "value": "worse", "operator": "Equal"},
)
EXTENDED = ("nvidia.com/gpu", "deviceclass.resource.kubernetes.io/mig", "deviceclass.resource.kubernetes.io/amd",
            "example.com/shared", "example.com/nothing")  # fmt: skip


def random_devices(random: Random, *, pods: int = 8) -> RandomCluster:
    """Return a cluster of 3 to 5 nodes with devices, and pods that claim some."""
    nodes = [f"node-{number}" for number in range(random.randint(3, 5))]
    slices = [each for node in nodes for each in _slices_of_node(random, node)]
    slices += _wide_slices(random, nodes)
    slices = [each for each in slices if random.random() > 0.01]
    classes = [_device_class(random, name) for name in CLASSES if random.random() > 0.01]
    claims = [_taken_claim(random, f"taken-{number}", slices) for number in range(random.randint(0, 4))]
    named = [_pod(random, f"pod-{number}", slices, nodes) for number in range(pods)]
    claims += [claim for _, some in named for claim in some]
    objects = [*[_node(random, name) for name in nodes], *slices, *classes, *claims, SHORT_TIMEOUT]
    return RandomCluster(objects, [pod for pod, _ in named])


def _node(random: Random, name: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "rack": random.choice("ab")}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    if random.random() < 0.2:
        amounts |= {random.choice(EXTENDED[:1] + EXTENDED[3:]): random.choice(("0", "2", "8"))}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": status,
    }


def _slices_of_node(random: Random, node: str) -> Iterator[Json]:
    layouts = (_dynamic_mig, _static_mig, _amd, _shared)
    for layout in random.sample(layouts, k=random.choice((0, 1, 2, 2, 3))):
        yield from layout(random, node)


def _slice(name: str, driver: str, pool: str, count: int, generation: int = 1, **spec: Any) -> Json:
    pooled = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pooled, **spec},
    }


def _dynamic_mig(random: Random, node: str) -> Iterator[Json]:
    """Yield a slice with counters, and one for each GPU with the card and every MIG device that could be made."""
    gpus, generation = random.randint(1, 3), random.choice((1, 1, 1, 2))
    counts = {"memory": {"value": "40192Mi"}, **{f"memory-slice-{i}": {"value": "1"} for i in range(4)}}
    sets = [{"name": f"gpu-{number}-counter-set", "counters": counts} for number in range(gpus)]
    kind: Json = {"nodeName": node, "generation": generation}
    yield _slice(f"{node}-{NVIDIA}-counters", NVIDIA, node, gpus + 1, sharedCounters=sets, **kind)
    for number in range(gpus):
        devices = _possible_devices(random, node, number)
        if number and random.random() < 0.03:
            devices[0]["name"] = "gpu-0-mig-1g10gb-0"
        name = f"{node}-{NVIDIA}-{random.choice('abc')}{number}"
        yield _slice(name, NVIDIA, node, gpus + 1, devices=devices, **kind)
    if random.random() < 0.1:
        old = _slice(f"{node}-{NVIDIA}-old", NVIDIA, node, 1, generation - 1, nodeName=node, devices=_cards(random, 1))
        yield old


def _possible_devices(random: Random, node: str, number: int) -> list[Json]:
    uuid = f"GPU-{node}-{number}"
    card = _cards(random, 1, number)[0]
    card["consumesCounters"] = [_consumption(number, "40192Mi", range(4))]
    devices = [card]
    for profile, (size, starts) in MIG_STARTS.items():
        for start in starts:
            device = _mig_device(f"gpu-{number}-mig-{profile.replace('.', '')}-{start}", profile, uuid)
            used = _consumption(number, MEMORIES[profile], range(start, start + size))
            if random.random() < 0.01:
                used["counterSet"] = "gpu-9-counter-set"
            devices.append(_tainted(random, device | {"consumesCounters": [used]}))
    return devices


def _consumption(number: int, memory: str, slices: Sequence[int]) -> Json:
    counters = {"memory": {"value": memory}, **{f"memory-slice-{i}": {"value": "1"} for i in slices}}
    return {"counterSet": f"gpu-{number}-counter-set", "counters": counters}


def _mig_device(name: str, profile: str, parent: str) -> Json:
    attributes = {
        "type": {"string": "mig"},
        "profile": {"string": profile},
        "parentUUID": {"string": parent},
        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
        "driverVersion": {"version": "570.86.15"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": MEMORIES[profile]}}}


def _cards(random: Random, count: int, first: int = 0) -> list[Json]:
    cards = []
    for number in range(first, first + count):
        attributes: Json = {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{number}"},
            "index": {"int": number},
            "productName": {"string": random.choice(("NVIDIA A100-SXM4-80GB", "NVIDIA A10"))},
            "driverVersion": {"version": random.choice(("570.86.15", "550.54.15"))},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // 2}"},
        }
        if random.random() < 0.1:
            del attributes[random.choice(("driverVersion", "productName", "resource.kubernetes.io/pcieRoot"))]
        capacity = {"memory": {"value": random.choice(("40192Mi", "23028Mi"))}}
        cards.append(_tainted(random, {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity}))
    return cards


def _tainted(random: Random, device: Json) -> Json:
    if random.random() < 0.05:
        effects = random.sample(("NoSchedule", "NoExecute", "None"), k=random.choice((1, 1, 2)))
        device["taints"] = [{**TAINT, "effect": effect} for effect in effects]
    return device


def _static_mig(random: Random, node: str) -> Iterator[Json]:
    """Yield one slice with cards, and MIG devices of a card in a random order."""
    devices = _cards(random, random.randint(1, 4))
    devices += [
        _mig_device(f"gpu-9-mig-{number}", random.choice(list(MEMORIES)), f"GPU-{node}-9")
        for number in range(random.randint(0, 4))
    ]
    random.shuffle(devices)
    if random.random() < 0.04:
        devices.append(dict(devices[0]))
        yield _slice(f"{node}-{NVIDIA}-y", NVIDIA, f"{node}-static", 2, nodeName=node, devices=devices[-1:])
        yield _slice(f"{node}-{NVIDIA}-z", NVIDIA, f"{node}-static", 2, nodeName=node, devices=devices[:-1])
    else:
        count = random.choice((1, 1, 1, 1, 1, 2))
        yield _slice(f"{node}-{NVIDIA}-z", NVIDIA, f"{node}-static", count, nodeName=node, devices=devices)


def _amd(random: Random, node: str) -> Iterator[Json]:
    devices = []
    for number in range(random.randint(1, 4)):
        is_partition = random.random() < 0.5
        attributes = {
            "type": {"string": "amdgpu-partition" if is_partition else "amdgpu"},
            "parent": {"string": f"card-{number // 2}"},
            "productName": {"string": "AMD_Instinct_MI300X_OAM"},
        }
        capacity = {"memory": {"value": "24564Mi" if is_partition else "196592Mi"}}
        devices.append(_tainted(random, {"name": f"amd-{number}", "attributes": attributes, "capacity": capacity}))
    yield _slice(f"{node}-{AMD}-x", AMD, node, 1, nodeName=node, devices=devices)


def _shared(random: Random, node: str) -> Iterator[Json]:
    """Yield a slice with devices that several claims can have, some of them cut from one counter set."""
    pool = node if random.random() < 0.1 else f"{node}-shared"
    yield _slice(
        f"{node}-{SHARED}-0", SHARED, pool, 2, nodeName=node,
        sharedCounters=[{"name": "board", "counters": {"ports": {"value": "2"}}}],
    )  # fmt: skip
    devices = []
    for number in range(random.randint(1, 3)):
        policy = random.choice(
            (None, _range_policy(random), {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]})
        )
        memory = {"value": random.choice(("40Gi", "64Gi")), **({"requestPolicy": policy} if policy else {})}
        device = {"name": f"shared-{number}", "allowMultipleAllocations": random.random() < 0.8}
        device["capacity"] = {"memory": memory}
        if not device["allowMultipleAllocations"]:
            memory.pop("requestPolicy", None)
        if random.random() < 0.4:
            device["consumesCounters"] = [{"counterSet": "board", "counters": {"ports": {"value": "1"}}}]
        devices.append(_tainted(random, device))
    yield _slice(f"{node}-{SHARED}-1", SHARED, pool, 2, nodeName=node, devices=devices)


def _range_policy(random: Random) -> Json:
    valid = {"min": "1Gi", "step": random.choice(("1Gi", "1Mi")), "max": random.choice(("20Gi", "40Gi"))}
    return {"default": random.choice(("1Gi", "4Gi")), "validRange": valid}


def _wide_slices(random: Random, nodes: Sequence[str]) -> Iterator[Json]:
    """Yield slices of devices that several nodes can use."""
    if random.random() < 0.6:
        return
    devices: list[Json] = []
    for number in range(random.randint(1, 4)):
        attributes: Json = {"speed": {"int": random.choice((50, 100, 400))}}
        if random.random() < 0.5:
            attributes["resource.kubernetes.io/pcieRoot"] = {"string": f"pci0000:{number // 2}"}
        devices.append(
            {"name": f"port-{number}", "attributes": attributes, "capacity": {"bandwidth": {"value": "20Gi"}}}
        )
    count = random.choice((1, 1, 1, 2))
    rack = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]
    where = random.choice(("all", "selector", "device"))
    spec: Json = {"allNodes": True}
    if where == "selector":
        spec = {"nodeSelector": {"nodeSelectorTerms": rack}}
    elif where == "device":
        spec = {"perDeviceNodeSelection": True}
        for device in devices:
            device |= random.choice(
                ({"nodeName": random.choice(nodes)}, {"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": rack}})
            )
    yield _slice("fabric", FABRIC, "fabric", count, devices=devices, **spec)
    if random.random() < 0.2:
        yield _slice("fabric-new", FABRIC, "fabric", 1, 2, devices=_named_port(), nodeName=random.choice(nodes))


def _named_port() -> list[Json]:
    return [{"name": "port-new", "attributes": {"speed": {"int": 400}}}]


def _device_class(random: Random, name: str) -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": CLASSES[name]}}]}
    extended = {"gpu": "nvidia.com/gpu", "unguarded": "nvidia.com/gpu", "shared": "example.com/shared"}
    if name in extended and random.random() < 0.7:
        spec["extendedResourceName"] = extended[name]
    created = f"2026-01-0{random.randint(1, 3)}T00:00:00Z"
    metadata = {"name": name, "creationTimestamp": created}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def _claim(name: str, spec: Json, status: Json | None = None) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
    claim: Json = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    return claim | ({"status": status} if status else {})


def _taken_claim(random: Random, name: str, slices: Sequence[Json]) -> Json:
    """Return a claim of another pod, with devices that may not be the right ones."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}}
    results = [result for _ in range(random.randint(1, 3)) for result in _taken_device(random, slices)]
    return _claim(name, spec, {"allocation": {"devices": {"results": results}}}) if results else _claim(name, spec)


def _taken_device(random: Random, slices: Sequence[Json]) -> Iterator[Json]:
    some = [each for each in slices if each["spec"].get("devices")]
    if not some:
        return
    spec = random.choice(some)["spec"]
    device = random.choice(spec["devices"])
    result: Json = {
        "request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]
    }  # fmt: skip
    if device.get("allowMultipleAllocations"):
        result |= {"shareID": f"{random.randrange(16**8):08x}-0000-4000-8000-000000000000"}
        if random.random() < 0.9:
            result["consumedCapacity"] = {"memory": random.choice(("1Gi", "10Gi", "20Gi"))}
    elif random.random() < 0.1:
        result["adminAccess"] = True
    yield result


def _pod(random: Random, name: str, slices: Sequence[Json], nodes: Sequence[str]) -> tuple[Json, list[Json]]:
    """Return a pod and its claims."""
    claims = [_pod_claim(random, f"{name}-{number}", slices, nodes) for number in range(random.choice((0, 1, 1, 1, 2)))]
    containers: list[Json] = [{"name": f"c{i}", "image": "a", "resources": {}} for i in range(random.randint(1, 3))]
    if not claims or random.random() < 0.15:
        for container in containers:
            _request_extended(random, container)
    names = [claim["metadata"]["name"] for claim in claims]
    spec: Json = {
        "containers": containers[:1] if len(containers) == 1 else containers[1:],
        "initContainers": containers[:1] if len(containers) > 1 else [],
        "resourceClaims": [{"name": f"r{i}", "resourceClaimName": each} for i, each in enumerate(names)],
    }
    if spec["initContainers"] and random.random() < 0.5:
        spec["initContainers"][0]["restartPolicy"] = "Always"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}, claims


def _request_extended(random: Random, container: Json) -> None:
    for resource in random.sample(EXTENDED[:4], k=random.choice((0, 1, 1, 2))):
        amount = random.choice(("1", "1", "2", "0"))
        container["resources"].setdefault("limits", {})[resource] = amount
    if random.random() < 0.03:
        container["resources"].setdefault("limits", {})[EXTENDED[4]] = "1"


def _pod_claim(random: Random, name: str, slices: Sequence[Json], nodes: Sequence[str]) -> Json:
    family = random.choice(list(CLASSES))
    requests = [_request(random, f"q{number}", family) for number in range(random.choice((1, 1, 1, 1, 2, 2, 3, 4)))]
    devices: Json = {"requests": requests}
    if len(requests) > 1 or random.random() < 0.3:
        devices["constraints"] = list(_constraints(random, requests, family))
    if random.random() < 0.06 and slices:
        claim = _taken_claim(random, name, slices)
        if "status" in claim and random.random() < 0.7:
            fields = [{"key": "metadata.name", "operator": "In", "values": [random.choice(nodes)]}]
            selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
            claim["status"]["allocation"]["nodeSelector"] = selector
        return claim
    return _claim(name, {"devices": devices})


def _request(random: Random, name: str, family: str) -> Json:
    if random.random() < 0.3:
        choices = [_device_request(random, family, choice=True) for _ in range(random.randint(1, 3))]
        return {"name": name, "firstAvailable": [{"name": f"s{i}", **each} for i, each in enumerate(choices)]}
    return {"name": name, "exactly": _device_request(random, family, choice=False)}


def _device_request(random: Random, family: str, *, choice: bool) -> Json:
    name = family if random.random() < 0.75 else random.choice(list(CLASSES))
    request: Json = {"deviceClassName": name if random.random() > 0.004 else "missing"}
    if random.random() < 0.4:
        expressions = random.sample(SELECTORS_OF_CLASS[name], k=1)
        request["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    if random.random() < 0.12:
        request["allocationMode"] = "All"
    else:
        count = random.choice((1, 1, 1, 1, 1, 1, 2, 2, 3 if random.random() < 0.7 else 20))
        request |= {"allocationMode": "ExactCount", "count": count}
    if random.random() < 0.15:
        request["tolerations"] = [random.choice(TOLERATIONS) for _ in range(random.randint(1, 2))]
    if name in CAPACITIES and random.random() < (0.5 if name == "shared" else 0.15):
        request["capacity"] = {"requests": {CAPACITIES[name]: random.choice(AMOUNTS)}}
    if not choice and random.random() < 0.08:
        request["adminAccess"] = True
    return request


def _constraints(random: Random, requests: Sequence[Json], family: str) -> Iterator[Json]:
    for _ in range(random.choice((0, 1, 1, 2))):
        constraint: Json = {
            random.choice(("matchAttribute", "matchAttribute", "distinctAttribute")): random.choice(
                ATTRIBUTES.get(family, ATTRIBUTES["gpu"])
            )
        }
        if random.random() < 0.6:
            some = random.sample(requests, k=random.randint(1, len(requests)))
            constraint["requests"] = [_constrained_name(random, each) for each in some]
        yield constraint


def _constrained_name(random: Random, request: Json) -> str:
    if "firstAvailable" in request and random.random() < 0.5:
        return f"{request['name']}/{random.choice(request['firstAvailable'])['name']}"
    name: str = request["name"]
    return name
