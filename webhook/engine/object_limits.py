"""How much one object may hold to be judged while the API server waits.

A decision cannot be cut off half-way, and nobody else is answered meanwhile. So what would take long is not begun.
A pod that is new beyond these bounds is refused where a policy enforces `security`: a hook that fails open must not
be a way in for what nobody could look at. Everything else beyond them is an error of HTTP, and `failurePolicy`
decides. Each bound is many times what any pod that runs has, and costs some ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain

from webhook.engine.templates import read_templates
from webhook.engine.violations import Violation, apply_exemptions, record_findings
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import Container, Pod, PodSpec
from webhook.policy.policy_set import PolicySet

TEXT_LENGTH = "characters of images, host paths, and names and amounts of resources"
"""What is worked out about these is kept for the pods to come, so their length costs memory."""

MAX_COUNTS = {
    "pod templates": 200,
    "containers": 500,
    "volumes": 1_000,
    "environment variables": 20_000,
    "volume mounts": 20_000,
    "resource amounts": 5_000,
    TEXT_LENGTH: 100_000,
    "tolerations": 1_000,
    "node affinity terms": 1_000,
}
"""The most of everything that one object may hold, all its templates together."""


def find_exceeded_limit(request: AdmissionRequest, policies: PolicySet) -> str:
    """What an object holds too much of to be judged, for example "500 containers"; "" where it can be judged."""
    if request.pod is None:
        return _exceeded_limit(_template_pods(request, policies))
    return _exceeded_limit([request.pod]) or (_exceeded_limit([request.old_pod]) if request.old_pod is not None else "")


def deny_oversized_pod(request: AdmissionRequest, most: str, policies: PolicySet, now: datetime) -> Decision:
    """The decision about a pod that may have `most` and has more; one without findings where nobody refuses it.

    What it matches is not looked at, as that too would be judging: every policy speaks that enforces `security`. A pod
    that was as large before is not refused, for it must still get its finalizers and its end.
    """
    if request.pod is None or (request.old_pod is not None and _exceeded_limit([request.old_pod])):
        return Decision()
    enforcing = [each.name for each in policies.policies if each.security and each.security.mode is PolicyMode.ENFORCE]
    findings: list[Finding] = []
    for name in enforcing:
        record_findings(findings, (PolicyMode.ENFORCE, name), [_oversized_violation(most)])
    standing, exempted = apply_exemptions(findings, policies.exemptions, request, request.pod, now)
    return Decision(standing, exempted, policies=tuple(enforcing), involves_gpus=bool(standing))


def _oversized_violation(most: str) -> Violation:
    return Violation("GPU-S401", (), f"a pod must have at most {most} to be judged, found more", "Make it smaller.")


def _exceeded_limit(pods: Iterable[Pod]) -> str:
    held = dict.fromkeys(MAX_COUNTS, 0)
    for pod in pods:
        for what, count in _count_pod_parts(pod):
            held[what] += count
            if held[what] > MAX_COUNTS[what]:
                return f"{MAX_COUNTS[what]} {what}"
    return ""


def _template_pods(request: AdmissionRequest, policies: PolicySet) -> Iterator[Pod]:
    """The templates of a workload, each read only once those before it are counted."""
    paths = policies.template_paths.get((request.group, request.kind), ())
    return (template.pod for template in read_templates(request, paths))


def _count_pod_parts(pod: Pod) -> Iterator[tuple[str, int]]:
    spec = pod.spec
    yield "pod templates", 1
    yield "containers", len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    yield "volumes", len(spec.volumes)
    yield TEXT_LENGTH, sum([len(volume.host_path.path) for volume in spec.volumes if volume.host_path])
    yield "tolerations", len(spec.tolerations)
    yield "node affinity terms", _count_affinity_terms(spec)
    for container in chain(spec.containers, spec.init_containers, spec.ephemeral_containers):
        yield from _count_container_parts(container)


def _count_container_parts(container: Container) -> Iterator[tuple[str, int]]:
    yield "environment variables", len(container.env) + len(container.env_from)
    yield "volume mounts", len(container.volume_mounts)
    amounts = [*container.resources.limits.items(), *container.resources.requests.items()]
    yield "resource amounts", len(amounts)
    yield TEXT_LENGTH, len(container.image) + sum([len(name) + len(str(amount)) for name, amount in amounts])


def _count_affinity_terms(spec: PodSpec) -> int:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return 0
    return len(affinity.preferred) + (len(affinity.required.node_selector_terms) if affinity.required else 0)
