"""What a scheduler asks of a node for a pod, and is not looked at: who fits here may still be refused."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.model.effective import effective_requests
from webhook.model.pods import Pod, PodSpec
from webhook.model.resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX
from webhook.placement.nodes.scheduling import other_requests


def unsupported_constraints(pod: Pod) -> tuple[str, ...]:
    """What of a pod nothing here looks at, in words; () for most pods."""
    return tuple(_unsupported_constraints(pod))


def unsimulated_constraints(pod: Pod) -> tuple[str, ...]:
    """The same with what `place` looks at, and a simulation, which knows GPUs, CPU and memory, does not."""
    return (*_unsupported_constraints(pod), *_unsimulated_fields(pod))


def _unsimulated_fields(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    if any(port.host_port for each in (*spec.containers, *spec.init_containers) for port in each.ports):
        yield "host ports"
    if spec.node_name:
        yield "spec.nodeName"
    yield from (f"resource {name}" for name in other_requests(pod) if name != ACCOUNTING_RESOURCE)


def _unsupported_constraints(pod: Pod) -> Iterator[str]:
    yield from _pod_affinity_constraints(pod.spec)
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints):
        yield "required topology spread"
    if pod.spec.resource_claims or any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod)):
        yield "resource claims"
    if any(each.persistent_volume_claim or each.ephemeral for each in pod.spec.volumes):
        yield "which nodes its volumes reach"
    if pod.spec.scheduling_gates:
        yield "scheduling gates, which keep it from every node until they are gone"


def _pod_affinity_constraints(spec: PodSpec) -> Iterator[str]:
    affinity = spec.affinity
    if affinity and affinity.pod_affinity and affinity.pod_affinity.required:
        yield "required pod affinity"
    if affinity and affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        yield "required pod anti-affinity"
