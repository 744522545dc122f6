"""Random amounts: what nodes offer, and what the containers of pods request."""

from __future__ import annotations

from random import Random

from tests.builders import Json
from tests.controlplane.build import is_minor_or_newer

GPU, MIG, DONGLE, RDMA = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/dongle", "rdma/hca"
COUNTED = (GPU, GPU, GPU, MIG, DONGLE, RDMA)
CPUS = ("100m", "250m", "0.5", "1", "1500m", "2", "0", "1e0")
MEMORIES = ("64Mi", "256Mi", "0.5Gi", "1Gi", "1e9", "1G", "123456789", "0", "1025Ki")
DISKS = ("1Gi", "5Gi", "10Gi", "0", "1e10")
HUGE_PAGES = ("hugepages-2Mi", "hugepages-1Gi")


def node_amounts(random: Random) -> Json:
    """Return what a node offers."""
    amounts: Json = {
        "cpu": random.choice(("8", "16", "7500m", "32")),
        "memory": random.choice(("8Gi", "16Gi", "32Gi", "17990000Ki")),
        "pods": random.choice(("3", "5", "110", "110", "110")),
    }
    if random.random() < 0.8:
        amounts["ephemeral-storage"] = random.choice(("10Gi", "20Gi", "50Gi"))
    if random.random() < 0.5:
        amounts["hugepages-2Mi"] = random.choice(("0", "64Mi", "1Gi"))
    if random.random() < 0.2:
        amounts["hugepages-1Gi"] = random.choice(("1Gi", "4Gi"))
    for name, probability in ((GPU, 0.7), (MIG, 0.2), (DONGLE, 0.3), (RDMA, 0.3)):
        if random.random() < probability:
            amounts[name] = random.choice(("0", "1", "2", "4", "8"))
    return amounts


def random_containers(random: Random) -> Json:
    """Return the containers of a pod, with init containers, overhead and amounts of the pod itself."""
    spec: Json = {"containers": [_container(random, f"c{number}") for number in range(random.choice((1, 1, 1, 2)))]}
    if random.random() < 0.25:
        spec["initContainers"] = [_init_container(random, f"i{number}") for number in range(random.choice((1, 2, 3)))]
    if random.random() < 0.1:
        spec["overhead"] = {"cpu": random.choice(CPUS), "memory": random.choice(MEMORIES)}
    if random.random() < 0.1:
        spec["resources"] = _pod_level(random)
    return spec


def _init_container(random: Random, name: str) -> Json:
    container = _container(random, name) | random.choice(({}, {"restartPolicy": "Always"}))
    if container.get("restartPolicy") == "Always" and not is_minor_or_newer(36):
        container.pop("restartPolicyRules", None)  # which 1.35 does not allow
    return container


def _container(random: Random, name: str) -> Json:
    container: Json = {"name": name, "image": "example.com/app:1"}
    if random.random() < 0.9:
        container["resources"] = _resources(random)
    if random.random() < 0.05:
        action = random.choice(("Restart", "RestartAllContainers" if is_minor_or_newer(36) else "Restart"))
        exits = {"operator": "In", "values": [1]}
        container |= {"restartPolicy": "Never", "restartPolicyRules": [{"action": action, "exitCodes": exits}]}
    return container


def _resources(random: Random) -> Json:
    requests: Json = {}
    limits: Json = {}
    for name, amounts in (("cpu", CPUS), ("memory", MEMORIES), ("ephemeral-storage", DISKS)):
        if random.random() < (0.25 if name == "ephemeral-storage" else 0.7):
            side = limits if random.random() < 0.2 else requests
            side[name] = random.choice(amounts)
    if random.random() < 0.3:
        name = random.choice(COUNTED)
        limits[name] = random.choice(("0", "1", "1", "1", "2", "4"))
        if random.random() < 0.5:
            requests[name] = limits[name]
    if random.random() < 0.04 and ("cpu" in {**requests, **limits}):
        limits[random.choice(HUGE_PAGES)] = random.choice(("1Gi", "2Gi"))
    return {"requests": requests, "limits": limits}


def _pod_level(random: Random) -> Json:
    """Return amounts that no container exceeds."""
    amounts = {"cpu": random.choice(("8", "9")), "memory": random.choice(("8Gi", "9Gi"))}
    names = random.sample(list(amounts), k=random.choice((1, 2)))
    return {random.choice(("requests", "limits")): {name: amounts[name] for name in names}}
