"""What a scheduler asks of a node for a pod, and is not looked at: who fits here may still be refused."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.model.effective import effective_requests
from webhook.model.pods import Pod, PodSpec
from webhook.model.resources import ACCOUNTING, DEVICE_CLASS_PREFIX
from webhook.placement.nodes.scheduling import others_of


def unseen(pod: Pod) -> tuple[str, ...]:
    """What of a pod nothing here looks at, in words; () for most pods."""
    return tuple(_unseen(pod))


def unplayed(pod: Pod) -> tuple[str, ...]:
    """The same with what `place` looks at, and a simulation, which knows GPUs, CPU and memory, does not."""
    return (*_unseen(pod), *_unplayed(pod))


def _unplayed(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    if any(port.host_port for each in (*spec.containers, *spec.init_containers) for port in each.ports):
        yield "host ports"
    if spec.node_name:
        yield "spec.nodeName"
    yield from (f"resource {name}" for name in others_of(pod) if name != ACCOUNTING)


def _unseen(pod: Pod) -> Iterator[str]:
    yield from _between_pods(pod.spec)
    if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints):
        yield "required topology spread"
    if pod.spec.resource_claims or any(name.startswith(DEVICE_CLASS_PREFIX) for name in effective_requests(pod)):
        yield "resource claims"
    if any(each.persistent_volume_claim or each.ephemeral for each in pod.spec.volumes):
        yield "which nodes its volumes reach"
    if pod.spec.scheduling_gates:
        yield "scheduling gates, which keep it from every node until they are gone"


def _between_pods(spec: PodSpec) -> Iterator[str]:
    affinity = spec.affinity
    if affinity and affinity.pod_affinity and affinity.pod_affinity.required:
        yield "required pod affinity"
    if affinity and affinity.pod_anti_affinity and affinity.pod_anti_affinity.required:
        yield "required pod anti-affinity"
