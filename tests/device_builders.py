"""ResourceSlices as drivers publish them, and claims that have devices of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.builders import Json
from webhook.model.mig_catalog import mig_profile_spec
from webhook.placement.mig import mig_geometry

NVIDIA, AMD = "gpu.nvidia.com", "gpu.amd.com"
H100 = "NVIDIA H100 80GB HBM3"
MEMORY_SLICES = 8
CARD_MEMORY, CARD_CORES = "81559Mi", "132"


def resource_slice(name: str, driver: str, pool: str, count: int = 1, **spec: Any) -> Json:
    """Return a ResourceSlice."""
    about = {"name": pool, "generation": 1, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": about, **spec},
    }


def partitionable_gpus(node: str, gpus: int = 1, product: str = H100) -> list[Json]:
    """Return the slices of NVIDIA's DynamicMIG: counters, and for each card all devices that could be made of it."""
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(MEMORY_SLICES)}
    whole = {"memory": {"value": CARD_MEMORY}, "multiprocessors": {"value": CARD_CORES}, **counters}
    sets = [{"name": f"gpu-{number}-counter-set", "counters": whole} for number in range(gpus)]
    head = resource_slice(f"{node}-{NVIDIA}-0", NVIDIA, node, gpus + 1, nodeName=node, sharedCounters=sets[:8])
    return [head] + [
        resource_slice(
            f"{node}-{NVIDIA}-{number + 1}",
            *(NVIDIA, node, gpus + 1),
            nodeName=node,
            devices=_partitionable_devices(node, number, product),
        )
        for number in range(gpus)
    ]


def _partitionable_devices(node: str, number: int, product: str) -> list[Json]:
    geometry = mig_geometry(product.replace(" ", "-"))
    assert geometry is not None
    devices = [card(f"gpu-{number}", product, uuid=_uuid(node, number), minor=number)]
    devices[0]["consumesCounters"] = [_consumption(number, CARD_MEMORY, CARD_CORES, range(MEMORY_SLICES))]
    for profile in geometry.profiles:
        spec = mig_profile_spec(product.replace(" ", "-"), profile.name)
        assert spec is not None
        for start in profile.starts:
            name = f"gpu-{number}-mig-{profile.name.replace('.', '')}-{profile.slices}-{start}"
            device = mig_device(name, profile.name, _uuid(node, number), product, spec.memory_mib)
            slices = range(start, start + spec.memory_units)
            used = _consumption(number, f"{spec.memory_mib}Mi", str(spec.sms or 0), slices)
            devices.append(device | {"consumesCounters": [used]})
    return sorted(devices, key=lambda device: str(device["name"]))


def _uuid(node: str, number: int) -> str:
    return f"GPU-{node}-{number:04d}-4d2c-9f3a-0c5a4f9e2b11"


def _consumption(number: int, memory: str, cores: str, slices: Sequence[int]) -> Json:
    used = {f"memory-slice-{i}": {"value": "1"} for i in slices}
    counters = {"memory": {"value": memory}, "multiprocessors": {"value": cores}, **used}
    return {"counterSet": f"gpu-{number}-counter-set", "counters": counters}


def card(name: str, product: str = H100, uuid: str = "", minor: int = 0, memory: str = CARD_MEMORY) -> Json:
    """Return a whole GPU of NVIDIA's driver."""
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": uuid or f"GPU-{name}"},
        **_common_attributes(product),
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{0x18 + 0x10 * minor:02x}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{minor // 2:02x}"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}


def _common_attributes(product: str) -> Json:
    return {
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "addressingMode": {"string": "HMM"},
    }


def mig_device(name: str, profile: str, parent: str, product: str = H100, memory: int = 9850) -> Json:
    """Return a MIG device of NVIDIA's driver; the memory is in MiB."""
    attributes = {
        "type": {"string": "mig"},
        "profile": {"string": profile},
        "parentUUID": {"string": parent},
        **_common_attributes(product),
    }
    engines = {name: {"value": "1"} for name in ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")}
    capacity = {"memory": {"value": f"{memory}Mi"}, "multiprocessors": {"value": "16"}, **engines}
    return {"name": name, "attributes": attributes, "capacity": capacity}


def without_profile(part: Json) -> Json:
    """Return a part of a card whose driver does not publish its profile."""
    left = {name: value for name, value in part["attributes"].items() if not name.lower().endswith("profile")}
    return part | {"attributes": left}


def amd_gpu(name: str, bus: str, profile: str = "spx_nps1", memory: str = "196592Mi") -> Json:
    """Return a GPU of AMD's driver, or a partition of one: in every profile but spx_nps1."""
    attributes = {
        "type": {"string": "amdgpu" if profile == "spx_nps1" else "amdgpu-partition"},
        "productName": {"string": "AMD_Instinct_MI300X_OAM"},
        "partitionProfile": {"string": profile},
        "driverVersion": {"version": "6.14.14"},
        "resource.kubernetes.io/pciBusID": {"string": bus},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}


def device_class(name: str, expression: str, extended: str = "") -> Json:
    """Return a DeviceClass with one selector."""
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if extended:
        spec["extendedResourceName"] = extended
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_claim(name: str, *devices: Json, namespace: str = "team", device_class_name: str = "gpu") -> Json:
    """Return a claim for one device of a class; with devices it is allocated."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class_name}}
    claim: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
    }
    if devices:
        claim["status"] = {"allocation": {"devices": {"results": [{"request": "gpu", **each} for each in devices]}}}
    return claim


def allocated(pool: str, device: str, driver: str = NVIDIA, share: str = "", **consumed: str) -> Json:
    """Return a device as a claim has it; with a share ID it is a share."""
    result: Json = {"driver": driver, "pool": pool, "device": device}
    return result | ({"shareID": share, "consumedCapacity": consumed} if share else {})


def node_groups(*slices: Json, **fields: Any) -> Json:
    """Return settings with one group, whose new nodes publish the devices of some slices."""
    group = {"name": "cards", "resources": {"cpu": "32", "memory": "128Gi"}, "resourceSlices": list(slices), **fields}
    about = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "NodeGroups", "metadata": {"name": "groups"}}
    return {**about, "nodeGroups": [group]}
