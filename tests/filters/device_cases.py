"""Small clusters with one pod, and the devices that it gets on the first node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.builders import Json
from tests.filters.device_selection import CLASSES, FABRIC, NVIDIA, SHARED
from tests.filters.random_clusters import RandomCluster

NODE, OTHER_NODE = "node-1", "node-2"
SHARE = "00000000-0000-4000-8000-000000000001"
PROFILE = f"device.attributes['{NVIDIA}'].profile == '1g.10gb'"
LARGE_SLICE = f"'profile' in device.attributes['{NVIDIA}'] && device.attributes['{NVIDIA}'].profile == '2g.20gb'"
TAINT = {"key": "example.com/health", "value": "bad", "effect": "NoSchedule"}


class DeviceCase(NamedTuple):
    """A pod in a cluster, and what it gets.

    Attributes:
        slices: The ResourceSlices.
        requests: The requests of the pod's claim; () for a pod without one.
        expected: Names of the devices by claim; or "rejected" or "failed", which ends scheduling on all nodes.
        constraints: The constraints of the claim.
        allocated: Devices that other claims have: their names, or whole results.
        limits: The extended resources of the pod.
        classes: The extended resource name by class.
        allocatable: What the node advertises.
        init: The extended resources of an init container.
    """

    slices: Sequence[Json]
    requests: Sequence[Json]
    expected: str | list[list[str]]
    constraints: Sequence[Json] = ()
    allocated: Sequence[str | Json] = ()
    limits: Mapping[str, str] = {}
    classes: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    init: Mapping[str, str] = {}

    def cluster(self) -> RandomCluster:
        """Return the objects of the cluster, and the pod."""
        nodes = [_node(NODE, self.allocatable), _node(OTHER_NODE, {})]
        claims = [_claim("mine", {"requests": list(self.requests), "constraints": list(self.constraints)})]
        results = [_result(each, self.slices) for each in self.allocated]
        taken = _claim("taken", {"requests": [exactly("any")]})
        taken["status"] = {"allocation": {"devices": {"results": results}}}
        objects = [*nodes, *self.slices, *[_device_class(name, self.classes.get(name)) for name in CLASSES]]
        return RandomCluster([*objects, *claims[: len(self.requests)], *([taken] if results else [])], [self._pod()])

    def _pod(self) -> Json:
        containers = [{"name": "main", "image": "a", "resources": {"limits": dict(self.limits)}}]
        spec: Json = {"containers": containers}
        if self.init:
            spec["initContainers"] = [{"name": "init", "image": "a", "resources": {"limits": dict(self.init)}}]
        if self.requests:
            spec["resourceClaims"] = [{"name": "mine", "resourceClaimName": "mine"}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "team"}, "spec": spec}


def exactly(device_class: str, name: str = "r", **fields: Any) -> Json:
    """Return a request."""
    request: Json = {"deviceClassName": device_class, "allocationMode": "ExactCount", **fields}
    return {"name": name, "exactly": request | ({} if request["allocationMode"] == "All" else {"count": 1} | fields)}


def selecting(device_class: str, *expressions: str, name: str = "r", **fields: Any) -> Json:
    """Return a request with selectors."""
    return exactly(device_class, name, selectors=[{"cel": {"expression": each}} for each in expressions], **fields)


def first_available(*requests: Json, name: str = "r") -> Json:
    """Return a request with choices s0, s1, ..."""
    return {"name": name, "firstAvailable": [{"name": f"s{i}", **each["exactly"]} for i, each in enumerate(requests)]}


def pool(*devices: Json, driver: str = NVIDIA, name: str = NODE, part: str = "", **spec: Any) -> Json:
    """Return a slice of a pool; by default it is all of it, and of the first node."""
    about = {"name": name, "generation": spec.pop("generation", 1), "resourceSliceCount": spec.pop("count", 1)}
    where = {} if spec.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection"} else {"nodeName": NODE}
    content = {"devices": list(devices)} if devices else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-{driver}-{part or about['generation']}"},
        "spec": {"driver": driver, "pool": about, **where, **content, **spec},
    }


def card(name: str, **fields: Any) -> Json:
    """Return a whole GPU; keyword arguments that are no field of a device are attributes."""
    attributes = {"type": {"string": "gpu"}, **fields.pop("attributes", {})}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "40192Mi"}}, **fields}


def mig(name: str, profile: str, memory: str, **fields: Any) -> Json:
    """Return a MIG device."""
    attributes = {"type": {"string": "mig"}, "profile": {"string": profile}, **fields.pop("attributes", {})}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **fields}


def using(*slices: int, gpu: int = 0) -> Json:
    """Return the counters of memory slices of a card."""
    counters = {f"memory-slice-{i}": {"value": "1"} for i in slices}
    return {"consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": counters}]}


def partitionable() -> list[Json]:
    """Return a card with four memory slices in NVIDIA's layout, devices sorted by name."""
    sets = [{"name": "gpu-0", "counters": {f"memory-slice-{i}": {"value": "1"} for i in range(4)}}]
    small = [mig(f"gpu-0-mig-1g10gb-{i}", "1g.10gb", "9850Mi", **using(i)) for i in range(4)]
    middle = [mig(f"gpu-0-mig-2g20gb-{i}", "2g.20gb", "19968Mi", **using(i, i + 1)) for i in (0, 2)]
    large = mig("gpu-0-mig-4g40gb-0", "4g.40gb", "40192Mi", **using(0, 1, 2, 3))
    devices = pool(card("gpu-0", **using(0, 1, 2, 3)), *small, *middle, large, part="0", count=2)
    return [pool(part="counters", sharedCounters=sets, count=2), devices]


def on_root(name: str, root: int) -> Json:
    """Return a card at a PCIe root."""
    return card(name, attributes={PCIE_ROOT: {"string": f"pci0000:{root}"}})


PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def shareable(name: str, policy: Json | None = None, **fields: Any) -> Json:
    """Return a device that several claims can have."""
    memory = {"value": "40Gi", **({"requestPolicy": policy} if policy else {})}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}, **fields}


def asking(memory: str, name: str = "r", **fields: Any) -> Json:
    """Return a request for memory of a shared device."""
    return exactly("shared", name, capacity={"requests": {"memory": memory}}, **fields)


def share(device: str, memory: str) -> Json:
    """Return a share of a device as it is allocated."""
    result = {"request": "r", "driver": SHARED, "pool": NODE, "device": device}
    return result | {"shareID": SHARE, "consumedCapacity": {"memory": memory}}


def named(node: str) -> Json:
    """Return a selector of one node."""
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


def _node(name: str, amounts: Mapping[str, str]) -> Json:
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "110", **amounts}
    status = {"allocatable": allocatable, "capacity": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def _device_class(name: str, extended: str | None) -> Json:
    spec = {"selectors": [{"cel": {"expression": CLASSES[name]}}]}
    named = {"extendedResourceName": extended} if extended else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec | named}


def _claim(name: str, devices: Json) -> Json:
    metadata = {"name": name, "namespace": "team"}
    spec = {"devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _result(allocated: str | Json, slices: Sequence[Json]) -> Json:
    if not isinstance(allocated, str):
        return allocated
    spec = next(
        each["spec"] for each in slices for device in each["spec"].get("devices", ()) if device["name"] == allocated
    )
    return {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": allocated}


WHOLE_OR_QUARTER = {"default": "10Gi", "validValues": ["10Gi", "40Gi"]}
ONE_COUNTER = {"name": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}
CARDS = [pool(card("gpu-0"), card("gpu-1"), card("gpu-2"))]
ROOTS = [pool(on_root("gpu-0", 0), on_root("gpu-1", 1), on_root("gpu-2", 1), card("gpu-3"))]
SLICE_MEMORY = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity('10Gi')) >= 0"

CASES: dict[str, DeviceCase] = {
    "the first device in published order is taken": DeviceCase(
        [pool(card("large"), mig("small", "1g.10gb", "9850Mi"))], [exactly("nvidia")], [["large"]]
    ),
    "pools are tried by driver and name": DeviceCase(
        [pool(card("b"), name="b"), pool(card("a"), name="a")], [exactly("gpu", count=2)], [["a", "b"]]
    ),
    "memory >= 10Gi gets twice the slice, because 1g.10gb publishes less": DeviceCase(
        partitionable(), [selecting("mig", SLICE_MEMORY)], [["gpu-0-mig-2g20gb-0"]]
    ),
    "a request for capacity gets the slice that has it": DeviceCase(
        partitionable(), [exactly("mig", capacity={"requests": {"memory": "9500Mi"}})], [["gpu-0-mig-1g10gb-0"]]
    ),
    "a request for capacity that no device has gets none": DeviceCase(
        partitionable(), [exactly("mig", capacity={"requests": {"cores": "1"}})], "rejected"
    ),
    "partitions of one card share its counters": DeviceCase(
        partitionable(),
        [selecting("mig", LARGE_SLICE), selecting("mig", PROFILE, name="q", count=2)],
        [["gpu-0-mig-2g20gb-0", "gpu-0-mig-1g10gb-2", "gpu-0-mig-1g10gb-3"]],
    ),
    "a card whose first slice is in use has no room for all of it": DeviceCase(
        partitionable(), [exactly("gpu")], "rejected", allocated=["gpu-0-mig-1g10gb-0"]
    ),
    "a counter below zero rejects every device with counters of its pool": DeviceCase(
        partitionable(), [selecting("mig", PROFILE)], "rejected", allocated=["gpu-0", "gpu-0-mig-1g10gb-0"]
    ),
    "a partition that keeps others from fitting is given back": DeviceCase(
        partitionable(),
        [selecting("mig", PROFILE), selecting("mig", LARGE_SLICE, name="q", count=1)],
        [["gpu-0-mig-1g10gb-0", "gpu-0-mig-2g20gb-2"]],
    ),
    "an attribute that one device lacks ends scheduling on all nodes": DeviceCase(
        [pool(card("gpu-0")), pool({"name": "port"}, driver=FABRIC)], [exactly("unguarded")], "failed"
    ),
    "an attribute that a device in use lacks does not matter": DeviceCase(
        [pool(card("gpu-0")), pool({"name": "port"}, driver=FABRIC)],
        [exactly("unguarded")],
        [["gpu-0"]],
        allocated=["port"],
    ),
    "an attribute that a later device lacks does not matter": DeviceCase(
        [pool(card("gpu-0"), {"name": "gpu-1"})], [exactly("unguarded")], [["gpu-0"]]
    ),
    "a class that does not exist rejects the pod": DeviceCase(CARDS, [exactly("missing")], "rejected"),
    "a choice of a class that does not exist rejects the pod": DeviceCase(
        CARDS, [first_available(exactly("gpu"), exactly("missing"))], "rejected"
    ),
    "more than 32 devices of one claim end scheduling": DeviceCase(
        CARDS, [exactly("gpu", "r", count=20), exactly("gpu", "q", count=20)], "failed"
    ),
    "more devices than the node has": DeviceCase(CARDS, [exactly("gpu", count=4)], "rejected"),
    "choices that exceed 32 devices are passed over": DeviceCase(
        CARDS,
        [exactly("gpu"), first_available(exactly("gpu", count=32), exactly("gpu"), name="q")],
        [["gpu-0", "gpu-1"]],
    ),
    "the first choice that is available is taken": DeviceCase(
        CARDS, [first_available(exactly("mig"), exactly("gpu", count=2))], [["gpu-0", "gpu-1"]]
    ),
    "only slices of the newest generation count": DeviceCase(
        [pool(card("old")), pool(card("new"), generation=2)], [exactly("gpu")], [["new"]]
    ),
    "an older generation counts where the newer one is for other nodes": DeviceCase(
        [pool(card("old")), pool(card("new"), generation=2, nodeName=OTHER_NODE)], [exactly("gpu")], [["old"]]
    ),
    "an older generation that is not complete does not count then": DeviceCase(
        [pool(card("old"), count=2), pool(card("new"), generation=2, nodeName=OTHER_NODE)], [exactly("gpu")], "rejected"
    ),
    "a pool with missing slices is not used": DeviceCase([pool(card("gpu-0"), count=2)], [exactly("gpu")], "rejected"),
    "a pool is complete if its other slices are for other nodes": DeviceCase(
        [pool(card("a"), count=2), pool(card("b"), part="b", count=2, nodeName=OTHER_NODE)], [exactly("gpu")], [["a"]]
    ),
    "all devices of a pool with missing slices are an error": DeviceCase(
        [pool(card("gpu-0"), count=2)], [exactly("gpu", allocationMode="All")], "failed"
    ),
    "all devices are those that the selectors select": DeviceCase(
        [pool(card("gpu-0"), mig("mig-0", "1g.10gb", "9850Mi"), card("gpu-1"))],
        [exactly("gpu", allocationMode="All")],
        [["gpu-0", "gpu-1"]],
    ),
    "all devices are not available while one is in use": DeviceCase(
        CARDS, [exactly("gpu", allocationMode="All")], "rejected", allocated=["gpu-1"]
    ),
    "all devices are at least one": DeviceCase(CARDS, [exactly("mig", allocationMode="All")], "rejected"),
    "a constraint that all devices do not meet is an error": DeviceCase(
        ROOTS, [exactly("gpu", allocationMode="All")], "failed", [{"matchAttribute": PCIE_ROOT}]
    ),
    "two devices with one name make a pool invalid": DeviceCase(
        [pool(card("gpu-0"), count=2), pool(card("gpu-0"), part="b", count=2)], [exactly("gpu")], "rejected"
    ),
    "a counter that does not exist makes a pool invalid": DeviceCase(
        [pool(card("gpu-0", **using(0)))], [exactly("gpu")], "rejected"
    ),
    "an invalid pool with counters of another node ends requests for all devices": DeviceCase(
        [*CARDS, pool(part="x", name="x", count=2, sharedCounters=partitionable()[0]["spec"]["sharedCounters"])],
        [exactly("gpu", allocationMode="All")],
        "failed",
    ),
    "devices of several nodes, each for its own": DeviceCase(
        [pool(card("a", nodeName=OTHER_NODE), card("b", allNodes=True), perDeviceNodeSelection=True, name="several")],
        [exactly("gpu")],
        [["b"]],
    ),
    "devices for the nodes of a selector": DeviceCase(
        [
            pool(card("a"), name="a", nodeSelector=named(OTHER_NODE)),
            pool(card("b"), name="b", nodeSelector=named(NODE)),
            pool(card("c"), name="c", allNodes=True),
        ],
        [exactly("gpu", count=2)],
        [["b", "c"]],
    ),
    "a matching attribute is searched for": DeviceCase(
        ROOTS, [exactly("gpu", count=2)], [["gpu-1", "gpu-2"]], [{"matchAttribute": PCIE_ROOT}]
    ),
    "a matching attribute of two requests": DeviceCase(
        ROOTS,
        [exactly("gpu"), first_available(exactly("gpu"), name="q")],
        [["gpu-1", "gpu-2"]],
        [{"matchAttribute": PCIE_ROOT, "requests": ["r", "q/s0"]}],
    ),
    "a constraint of other requests does not matter": DeviceCase(
        ROOTS,
        [exactly("gpu"), exactly("gpu", "q")],
        [["gpu-0", "gpu-1"]],
        [{"matchAttribute": PCIE_ROOT, "requests": ["q"]}],
    ),
    "a distinct attribute": DeviceCase(
        ROOTS,
        [exactly("gpu", each) for each in ("a", "b", "c")],
        "rejected",
        [{"distinctAttribute": PCIE_ROOT}],
    ),
    "a distinct attribute forgets all but the last device of a request": DeviceCase(
        [pool(on_root("gpu-0", 0), on_root("gpu-1", 1), on_root("gpu-2", 0))],
        [exactly("gpu", count=3)],
        [["gpu-0", "gpu-1", "gpu-2"]],
        [{"distinctAttribute": PCIE_ROOT}],
    ),
    "a tainted device is not allocated": DeviceCase(
        [pool(card("gpu-0", taints=[TAINT]), card("gpu-1"))], [exactly("gpu")], [["gpu-1"]]
    ),
    "a tolerated taint does not matter": DeviceCase(
        [pool(card("gpu-0", taints=[TAINT]))], [exactly("gpu", tolerations=[{"operator": "Exists"}])], [["gpu-0"]]
    ),
    "a taint without effect does not matter": DeviceCase(
        [pool(card("gpu-0", taints=[TAINT | {"effect": "None"}]))], [exactly("gpu")], [["gpu-0"]]
    ),
    "access for administration sees devices in use": DeviceCase(
        CARDS, [exactly("gpu", adminAccess=True)], [["gpu-0"]], allocated=["gpu-0"]
    ),
    "access for administration takes a device from the other requests of its pod": DeviceCase(
        CARDS, [exactly("gpu", adminAccess=True), exactly("gpu", "q")], [["gpu-0", "gpu-1"]]
    ),
    "a claim for administration leaves its device to others": DeviceCase(
        CARDS,
        [exactly("gpu")],
        [["gpu-0"]],
        allocated=[{"request": "r", "driver": NVIDIA, "pool": NODE, "device": "gpu-0", "adminAccess": True}],
    ),
    "shares of one device, until its memory is used up": DeviceCase(
        [pool(shareable("s0"), shareable("s1"), driver=SHARED)],
        [asking("20Gi", "a"), asking("20Gi", "b"), asking("1Gi", "c")],
        [["s0", "s0", "s1"]],
    ),
    "all devices are those that have room": DeviceCase(
        [pool(shareable("s0"), shareable("s1", WHOLE_OR_QUARTER), driver=SHARED)],
        [exactly("shared"), asking("30Gi", "q", allocationMode="All")],
        [["s1", "s0"]],
        allocated=[share("s1", "10Gi")],
    ),
    "all devices are all of them if they are free": DeviceCase(
        [pool(shareable("s0"), shareable("s1", WHOLE_OR_QUARTER), driver=SHARED)],
        [exactly("shared"), asking("30Gi", "q", allocationMode="All")],
        "rejected",
    ),
    "a share of what other claims leave": DeviceCase(
        [pool(shareable("s0"), shareable("s1"), driver=SHARED)],
        [asking("20Gi")],
        [["s1"]],
        allocated=[share("s0", "30Gi")],
    ),
    "a request without an amount takes all of a device": DeviceCase(
        [pool(shareable("s0"), driver=SHARED)], [exactly("shared"), asking("1Gi", "q")], "rejected"
    ),
    "a default amount leaves the rest": DeviceCase(
        [pool(shareable("s0", {"default": "4Gi"}), driver=SHARED)],
        [exactly("shared"), asking("36Gi", "q")],
        [["s0", "s0"]],
    ),
    "an amount is rounded up to a step": DeviceCase(
        [pool(shareable("s0", {"default": "1Gi", "validRange": {"min": "1Gi", "step": "10Gi"}}), driver=SHARED)],
        [asking("12Gi"), asking("20Gi", "q")],
        "rejected",
    ),
    "an amount above the largest valid one is not allocated": DeviceCase(
        [pool(shareable("s0", {"default": "1Gi", "validRange": {"min": "1Gi", "max": "10Gi"}}), driver=SHARED)],
        [asking("11Gi")],
        "rejected",
    ),
    "an amount is rounded up to a valid value": DeviceCase(
        [pool(shareable("s0", {"default": "10Gi", "validValues": ["10Gi", "30Gi"]}), driver=SHARED)],
        [asking("11Gi"), asking("11Gi", "q")],
        "rejected",
    ),
    "only the first share of a device uses counters": DeviceCase(
        [
            pool(part="c", driver=SHARED, count=2, sharedCounters=[ONE_COUNTER]),
            pool(shareable("s0", **using(0)), shareable("s1", **using(0)), driver=SHARED, count=2),
        ],
        [asking("20Gi", "a"), asking("20Gi", "b")],
        [["s0", "s0"]],
    ),
    "an extended resource of a class": DeviceCase(
        CARDS, [], [["gpu-0", "gpu-1"]], limits={"nvidia.com/gpu": "2"}, classes={"gpu": "nvidia.com/gpu"}
    ),
    "the implicit name of a class": DeviceCase(
        partitionable(), [], [["gpu-0-mig-1g10gb-0"]], limits={"deviceclass.resource.kubernetes.io/mig": "1"}
    ),
    "a resource that the node advertises is not served by a class": DeviceCase(
        CARDS,
        [],
        [],
        limits={"nvidia.com/gpu": "1"},
        classes={"gpu": "nvidia.com/gpu"},
        allocatable={"nvidia.com/gpu": "1"},
    ),
    "a resource that nothing serves, and one of a class": DeviceCase(
        CARDS,
        [],
        "rejected",
        limits={"nvidia.com/gpu": "1", "example.com/nothing": "1"},
        classes={"gpu": "nvidia.com/gpu"},
    ),
    "a claim and an extended resource": DeviceCase(
        CARDS,
        [exactly("gpu")],
        [["gpu-0"], ["gpu-1"]],
        limits={"nvidia.com/gpu": "1"},
        classes={"gpu": "nvidia.com/gpu"},
    ),
    "an init container uses the devices of later containers": DeviceCase(
        CARDS,
        [],
        [["gpu-0", "gpu-1", "gpu-2"]],
        limits={"nvidia.com/gpu": "2"},
        init={"nvidia.com/gpu": "3"},
        classes={"gpu": "nvidia.com/gpu"},
    ),
}
