"""Worlds in which each pod's claim requests all devices that one generated or collected selector selects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Any

from tests.builders import Json
from tests.controlplane.selector_texts import random_device
from tests.device_builders import device_class, resource_slice
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_devices import NAMESPACE

DEVICES_OF_NODES = (1, 1, 2, 4)
"""Devices that each node publishes: a device on which a selector fails hides what it does with others of its node."""

ANY = "any"


def world_of_selectors(random: Random, expressions: Sequence[str]) -> RandomCluster:
    """Return a world with generated devices, and one pod for each selector, which takes no device from the others."""
    objects: list[Json] = [device_class(ANY, "true")]
    for number, count in enumerate(DEVICES_OF_NODES):
        devices = random_devices_of_node(random, count)
        objects += [_node(f"node-{number}"), *generated_slices(f"node-{number}", devices)]
    named = [(f"pod-{number}", text) for number, text in enumerate(expressions)]
    claims = [claim_of_all(name, text) for name, text in named]
    return RandomCluster([*objects, *claims], [claiming_pod(name) for name, _ in named])


def generated_slices(node: str, devices: Sequence[dict[str, Any]]) -> Iterator[Json]:
    """Yield the slices of a node with these devices, one for each driver."""
    for driver, some in groupby(sorted(devices, key=_driver_of), _driver_of):
        published = [each["device"] for each in some]
        yield resource_slice(f"{node}-{driver}", driver, node, nodeName=node, devices=published)


def random_devices_of_node(random: Random, count: int) -> list[dict[str, Any]]:
    """Return devices with different names, each with its driver."""
    devices = [random_device(random) for _ in range(count)]
    return [each | {"device": each["device"] | {"name": f"device-{number}"}} for number, each in enumerate(devices)]


def _driver_of(published: dict[str, Any]) -> str:
    return str(published["driver"])


def claim_of_all(name: str, *expressions: str, namespace: str = NAMESPACE) -> Json:
    """Return a claim for all devices that each selector selects; it shares them with all other claims."""
    exactly = {"deviceClassName": ANY, "allocationMode": "All", "adminAccess": True}
    requests = [
        {"name": f"request-{number}", "exactly": exactly | {"selectors": [{"cel": {"expression": text}}]}}
        for number, text in enumerate(expressions)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
    }


def selector_of(world: RandomCluster, claim: str) -> str:
    """Return the selector of a claim."""
    (found,) = (each for each in world.of_kind("ResourceClaim") if each["metadata"]["name"] == claim)
    return str(found["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"])


def claiming_pod(name: str, namespace: str = NAMESPACE, **spec: Any) -> Json:
    """Return a pod with the claim of its name."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **spec,
            "containers": [{"name": "main", "image": "a"}],
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
        },
    }


def _node(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"pods": "110"}}}
