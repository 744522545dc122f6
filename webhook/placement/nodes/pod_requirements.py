"""Read from a pod what it requires of a node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.enums import GpuForm
from webhook.model.fleet import MAX_MEMORY, Fleet
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import union_masks
from webhook.model.pod_resources import count_gpu_units, effective_requests
from webhook.model.pods import Pod, Toleration
from webhook.model.quantity import NANO
from webhook.placement.nodes.device_plugin import (
    ContainerRequest,
    ContainerRequests,
    gpu_container_requests,
    largest_request,
)

NVLINK_REQUIRED, NVLINK_IGNORED = "nvlink=required", "nvlink=ignored"


class PodRequirements(msgspec.Struct, frozen=True):
    """Requests and constraints of one pod.

    Attributes:
        resource: GPU resource name; "" for a pod without GPUs. Of several, the one that nodes are ranked by.
        count: Units of it.
        memory: Memory in bytes.
        selected_nodes: Mask of the nodes that its node selector and required affinity allow.
        container_requests: The containers that request whole GPUs, if nodes are ranked by these; otherwise ().
        communicates: True if the GPUs of a container communicate with each other.
        nvlink_required: True if it must not run unless NVLink connects the GPUs of each container.
        other_gpus: Other requested GPU resources, with units: a node must have these too.
        unsuitable_nodes: Mask of the nodes whose slices or shares must not serve the pod: see `unsuitable_nodes`.
        served_by_classes: GPU resources that the pod requests too, on nodes where device classes serve them.
    """

    resource: str
    count: int
    cpu_milli: int
    memory: int
    selected_nodes: int
    tolerations: tuple[Toleration, ...] = ()
    container_requests: ContainerRequests = ()
    communicates: bool = False
    nvlink_required: bool = False
    other_gpus: tuple[tuple[str, int], ...] = ()
    unsuitable_nodes: int = 0
    served_by_classes: frozenset[str] = frozenset()

    @property
    def gpu_resources(self) -> tuple[tuple[str, int], ...]:
        """All requested GPU resources, with units; the one that nodes are ranked by first."""
        return ((self.resource, self.count), *self.other_gpus) if self.resource else ()


def pod_requirements(pod: Pod, fleet: Fleet) -> PodRequirements:
    """Return the requirements of a pod.

    If it requests several GPU resources, nodes are ranked by the one with the most units.
    Several whole GPUs of one container are assumed to communicate unless the pod's annotation says otherwise.
    """
    requirements = requirements_from_amounts(effective_requests(pod), fleet.all_nodes)
    annotation = pod.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")
    requests = gpu_container_requests(pod, WHOLE_GPU) if requirements.resource == WHOLE_GPU else ()
    several = largest_request(requests) > 1
    selected = fleet.nodes_selected_by(pod.spec)
    return replace(
        requirements,
        selected_nodes=selected,
        unsuitable_nodes=unsuitable_nodes(pod, requirements, selected, fleet) if requirements.count > 1 else 0,
        tolerations=pod.spec.tolerations,
        container_requests=requests,
        communicates=several and annotation != NVLINK_IGNORED,
        nvlink_required=several and annotation == NVLINK_REQUIRED,
    )


def unsuitable_nodes(pod: Pod, requirements: PodRequirements, selected: int, fleet: Fleet) -> int:
    """Return the nodes whose slices or shares must not serve a pod with several units.

    The kubelet rejects a container with several MPS shares. Slices and shares that are advertised as `nvidia.com/gpu`
    do not reach each other, so they serve no request for several where the pod may get whole cards elsewhere.
    """
    resource, count = requirements.resource, requirements.count
    offers = fleet.by_resource.get(resource, ())
    found = 0
    if (
        any(offer.form is GpuForm.MPS for offer in offers)
        and largest_request(gpu_container_requests(pod, resource)) > 1
    ):
        found = union_masks(offer.nodes for offer in offers if offer.form is GpuForm.MPS)
    if resource == WHOLE_GPU and fleet.partial_gpu_nodes:
        whole = fleet.nodes_advertising(WHOLE_GPU, count) & ~fleet.partial_gpu_nodes
        if whole & selected & fleet.tolerated_nodes(pod.spec.tolerations):
            found |= fleet.partial_gpu_nodes
    return found


def requirements_from_amounts(amounts: Mapping[str, int], selected_nodes: int) -> PodRequirements:
    """Return the requirements of a pod with one container, from nano-units by resource; negative ones are ignored."""
    gpus = {name: count for name, count in count_gpu_units(amounts.items()).items() if count > 0}
    resource = max(gpus, key=lambda name: gpus[name], default="")
    return PodRequirements(
        resource=resource,
        count=gpus.get(resource, 0),
        cpu_milli=max(0, -(-amounts.get("cpu", 0) // (NANO // 1000))),
        memory=min(2 * MAX_MEMORY, max(0, -(-amounts.get("memory", 0) // NANO))),
        selected_nodes=selected_nodes,
        container_requests=(ContainerRequest(gpus[resource]),) if resource == WHOLE_GPU else (),
        other_gpus=tuple((name, count) for name, count in gpus.items() if name != resource),
    )
