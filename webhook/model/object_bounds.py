"""The bounds of how much one object may contain, so that its evaluation takes little time.

Each bound is at least ten times what real pods and workloads have, and `make bench-hostile` measures that no object
within them takes more than 50 ms of CPU. Templates of claims are other objects: a pod with hundreds of claims of many
requests each takes longer, and a server stops its review (`web.limits.CpuLimit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from webhook.model.pods import Container, NodeSelectorTerm, Pod, PodSpec

TEXT_LENGTH = "characters of images, host paths, and names and amounts of resources"
"""Results for these are cached, so their length costs memory."""

MAX_COUNTS = {
    "pod templates": 64,
    "containers": 150,
    "volumes": 500,
    "environment variables": 5_000,
    "volume mounts": 5_000,
    "ports": 2_000,
    "capabilities": 2_000,
    "resource amounts": 1_000,
    "different resource names": 100,
    TEXT_LENGTH: 100_000,
    "annotations": 2_000,
    "labels": 2_000,
    "owner references": 500,
    "node selector keys": 500,
    "node affinity terms": 500,
    "node affinity expressions": 1_000,
    "node affinity values": 5_000,
    "pod affinity terms": 500,
    "tolerations": 500,
    "spread constraints": 500,
    "resource claims": 500,
    "uses of resource claims": 500,
    "scheduling gates": 500,
    "keys of a quota": 1_000,
    "entries of a LimitRange": 500,
}
"""Maximum counts of one object, all its templates together."""


PartCount = tuple[str, int]
"""A key of `MAX_COUNTS`, and how many there are."""


def find_exceeded_bound(pods: Iterable[Pod]) -> str:
    """Return the bound that pods exceed together, for example "150 containers"; "" if they are within all."""
    return exceeded_bound(chain.from_iterable(map(_count_pod_parts, pods)))


def exceeded_bound(parts: Iterable[PartCount]) -> str:
    counts: dict[str, int] = {}
    for part, count in parts:
        if not count:
            continue
        counts[part] = total = counts.get(part, 0) + count
        if total > MAX_COUNTS[part]:
            return f"{MAX_COUNTS[part]} {part}"
    return ""


def _count_pod_parts(pod: Pod) -> Iterator[PartCount]:
    metadata, spec = pod.metadata, pod.spec
    yield "pod templates", 1
    yield "containers", len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    yield "annotations", len(metadata.annotations)
    yield "labels", len(metadata.labels)
    yield "owner references", len(metadata.owner_references)
    yield "volumes", len(spec.volumes)
    yield TEXT_LENGTH, sum([len(volume.host_path.path) for volume in spec.volumes if volume.host_path])
    yield "tolerations", len(spec.tolerations)
    yield "spread constraints", len(spec.topology_spread_constraints)
    yield "resource claims", len(spec.resource_claims)
    yield "scheduling gates", len(spec.scheduling_gates)
    yield from _count_constraints(spec)
    names: set[str] = set()
    for container in chain(spec.containers, spec.init_containers, spec.ephemeral_containers):
        yield from _count_container_parts(container, names)
    levels = [spec.overhead, *((spec.resources.limits, spec.resources.requests) if spec.resources is not None else ())]
    yield from _count_amounts(levels, names)
    yield "different resource names", len(names)


def _count_container_parts(container: Container, names: set[str]) -> Iterator[PartCount]:
    yield "environment variables", len(container.env) + len(container.env_from)
    yield "volume mounts", len(container.volume_mounts)
    yield "ports", len(container.ports)
    if container.security_context is not None:
        yield "capabilities", len(container.security_context.capabilities.add)
    yield TEXT_LENGTH, len(container.image)
    yield "uses of resource claims", len(container.resources.claims)
    yield from _count_amounts((container.resources.limits, container.resources.requests), names)


def _count_amounts(levels: Iterable[dict[str, Any]], names: set[str]) -> Iterator[PartCount]:
    for amounts in levels:
        yield "resource amounts", len(amounts)
        yield TEXT_LENGTH, sum([len(name) + len(str(amount)) for name, amount in amounts.items()])
        names.update(amounts)


def _count_constraints(spec: PodSpec) -> Iterator[PartCount]:
    yield "node selector keys", len(spec.node_selector)
    if spec.affinity is None:
        return
    for of_pods in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity):
        if of_pods is not None:
            yield "pod affinity terms", len(of_pods.required) + len(of_pods.preferred)
    of_nodes = spec.affinity.node_affinity
    if of_nodes is not None:
        required = of_nodes.required.node_selector_terms if of_nodes.required is not None else ()
        for term in (*required, *[each.preference for each in of_nodes.preferred]):
            yield from _count_term(term)


def _count_term(term: NodeSelectorTerm) -> Iterator[PartCount]:
    yield "node affinity terms", 1
    for expression in (*term.match_expressions, *term.match_fields):
        yield "node affinity expressions", 1
        yield "node affinity values", len(expression.values)
