"""The largest objects that are evaluated while the API server waits.

Other requests wait meanwhile, so larger objects are not evaluated. A new pod
beyond these bounds is denied if a policy enforces `security`: a webhook that fails open must not admit pods that were
not evaluated. Everything else beyond them is an HTTP error, and `failurePolicy` decides.

Each bound is at least ten times what real pods and workloads have, and `make bench-hostile` measures that no object
within them takes more than 50 ms of CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from webhook.engine.linting import LINTED_KINDS
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.settle import settle
from webhook.engine.templates import read_templates
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.pods import Container, NodeSelectorTerm, Pod, PodSpec
from webhook.policy.policy_set import PolicySet

MAX_VALUES = 30_000
"""JSON values of one review: decoding and reading cost up to a microsecond each. Reviews of real pods have at most
2,000, and those of workloads at most 2,500."""

MAX_SKIPPED_VALUES = 1_000_000
"""Values of a review that can be passed over within the time; an API server sends at most as many."""

VALUES_LIMIT = f"{MAX_VALUES} values"

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
    "scheduling gates": 500,
    "keys of a quota": 1_000,
    "entries of a LimitRange": 500,
}
"""Maximum counts of one object, all its templates together."""


def count_values(body: bytes) -> int:
    """Return at least the number of JSON values of a review; commas and brackets in its texts count too.

    >>> count_values(b'{"a":[1,2,{}]}')
    6
    """
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def find_exceeded_limit(request: AdmissionRequest, policies: PolicySet) -> str:
    """Return the bound that an object exceeds, for example "200 containers"; "" if it can be evaluated."""
    if request.pod is not None:
        return _exceeded_by([request.pod]) or (_exceeded_by([request.old_pod]) if request.old_pod is not None else "")
    if request.kind in LINTED_KINDS and not request.group:
        return _exceeded_limit(_count_namespace_limits(request.load_object()))
    # Each template is read only once those before it are counted.
    return _exceeded_by(template.pod for template in read_templates(request, policies.workload_kinds))


REDUCE_POD = "Reduce the pod's size."


def deny_oversized_pod(
    request: AdmissionRequest, message: str, policies: PolicySet, now: datetime, fix: str = REDUCE_POD
) -> Decision:
    """Return the decision for a pod that is too large to evaluate; without findings if no policy denies it.

    Matching is part of evaluation, so every policy denies it that enforces `security`. A pod that was as large before
    is not denied, because it must still get its finalizers and be deleted.
    """
    if request.pod is None or (request.old_pod is not None and _exceeded_by([request.old_pod])):
        return Decision()
    enforcing = [each.name for each in policies.policies if each.security and each.security.mode is PolicyMode.ENFORCE]
    finding = PolicyFinding("GPU-S401", (), message, fix)
    reported = [((PolicyMode.ENFORCE, name), finding) for name in enforcing]
    findings, exempted = settle(reported, policies.exemptions, request, request.pod, now)
    return Decision(findings, exempted, policies=tuple(enforcing), involves_gpus=bool(findings))


PartCount = tuple[str, int]
"""A key of `MAX_COUNTS`, and how many there are."""


def _exceeded_by(pods: Iterable[Pod]) -> str:
    return _exceeded_limit(chain.from_iterable(map(_count_pod_parts, pods)))


def _exceeded_limit(parts: Iterable[PartCount]) -> str:
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


def _count_namespace_limits(data: object) -> Iterator[PartCount]:
    """Yield the counts of a LimitRange or ResourceQuota in any form; its linter ignores what is malformed."""
    spec = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(spec, dict):
        return
    yield "keys of a quota", _size(spec.get("hard"))
    items = spec.get("limits")
    for item in items if isinstance(items, list) else ():
        yield "entries of a LimitRange", 1 + sum(map(_size, item.values())) if isinstance(item, dict) else 1


def _size(value: object) -> int:
    return len(value) if isinstance(value, dict) else 0
