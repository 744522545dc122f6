"""What a pod wants of a node, read from the pod."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod, Toleration
from webhook.model.quantity import NANO
from webhook.placement.nodes.device_plugin import ContainerRequest, gpu_container_requests, largest_request
from webhook.placement.nodes.snapshot import MIB, PodRequirements

DAEMON_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""What the controller adds to every pod of a DaemonSet."""

HOST_NETWORK_TOLERATION = Toleration(
    key="node.kubernetes.io/network-unavailable", operator="Exists", effect="NoSchedule"
)
"""And to those on the network of their host."""


REQUIRED, IGNORED = "nvlink=required", "nvlink=ignored"


def pod_requirements(pod: Pod, fleet: Fleet) -> PodRequirements:
    """What a pod wants. Of several GPU resources, the one with the most units ranks.

    The GPUs of a container with several whole ones are taken to talk to each other unless the pod's annotation says
    they do not.
    """
    wanted = requirements_from_amounts(effective_requests(pod), fleet.all_nodes)
    said = pod.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")
    turns = gpu_container_requests(pod, WHOLE_GPU) if wanted.resource == WHOLE_GPU else ()
    several = largest_request(turns) > 1
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    return replace(
        wanted,
        selected_nodes=fleet.select_nodes(pod.spec.node_selector, terms),
        tolerations=pod.spec.tolerations,
        container_requests=turns,
        communicates=several and said != IGNORED,
        nvlink_required=several and said == REQUIRED,
    )


def requirements_from_amounts(amounts: Mapping[str, int], selected: int) -> PodRequirements:
    """What a pod of one container wants that asks for so much; an amount below zero counts as nothing.

    Args:
        amounts: Nano-units by resource.
        selected: Mask of the nodes that its selectors allow.
    """
    gpus = {name: -(-amount // NANO) for name, amount in amounts.items() if amount > 0 and parse_gpu_resource(name)}
    resource = max(gpus, key=lambda name: gpus[name], default="")
    return PodRequirements(
        resource=resource,
        count=gpus.get(resource, 0),
        cpu_milli=max(0, -(-amounts.get("cpu", 0) // (NANO // 1000))),
        memory_mib=max(0, -(-amounts.get("memory", 0) // (NANO * MIB))),
        selected_nodes=selected,
        container_requests=(ContainerRequest(gpus[resource]),) if resource == WHOLE_GPU else (),
        other_gpus=tuple((name, count) for name, count in gpus.items() if name != resource),
    )


def daemon_set_pod(pod: Pod, *, on_host: bool) -> Pod:
    """The pod as the controller makes it of a DaemonSet's template; `on_host`: on the network of its host."""
    added = (*DAEMON_TOLERATIONS, HOST_NETWORK_TOLERATION) if on_host else DAEMON_TOLERATIONS
    return replace(pod, spec=replace(pod.spec, tolerations=(*pod.spec.tolerations, *added)))


def daemon_set_nodes(pod: Pod, fleet: Fleet) -> int:
    """Mask of the nodes that get one: state, selectors and taints let it in. What is free is not asked."""
    tolerations = pod.spec.tolerations
    return fleet.nodes_selected_by(pod.spec) & fleet.tolerated_nodes(tolerations) & fleet.schedulable_nodes(tolerations)
