"""What ties a pod to nodes beside labels, taints, CPU, memory and GPUs: things a view does not hold.

A pod that would have run must not wait for a slice on a node that something else keeps it from. Where a policy
lets pods wait (`whenFull: wait`), none of this is asked.
"""

from __future__ import annotations

from webhook.model.pods import Pod, PodSpec
from webhook.model.resources import ACCOUNTING_RESOURCE

_MODELLED_RESOURCES = frozenset({"cpu", "memory", ACCOUNTING_RESOURCE})


def unmodelled_constraint(pod: Pod) -> str:
    """The first thing whose effect on the choice of a node is not known here, in words; "" if there is none."""
    spec = pod.spec
    for volume in spec.volumes:
        if volume.persistent_volume_claim is not None:
            return f"volume claim {volume.persistent_volume_claim.get('claimName', '')}"
        if volume.ephemeral is not None:
            return "a volume of its own"
    affinity = spec.affinity
    if affinity is not None:
        for part in (affinity.pod_affinity, affinity.pod_anti_affinity):
            if part is not None and part.required:
                return "required affinity between pods"
    for constraint in spec.topology_spread_constraints:
        if constraint.when_unsatisfiable == "DoNotSchedule":
            return f"spread over {constraint.topology_key}"
    return _container_constraint(spec)


def _container_constraint(spec: PodSpec) -> str:
    for container in (*spec.containers, *spec.init_containers):
        for port in container.ports:
            if port.host_port:
                return f"host port {port.host_port}"
    asked = [container.resources for container in (*spec.containers, *spec.init_containers)]
    whole = [spec.resources] if spec.resources is not None else []
    named = (name for one in (*asked, *whole) for name in (*one.requests, *one.limits))
    for name in (*named, *spec.overhead):
        if name not in _MODELLED_RESOURCES and not name.startswith("nvidia.com/"):
            return f"resource {name}"
    return ""
