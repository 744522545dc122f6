"""The largest objects that are evaluated while the API server waits.

A decision cannot be interrupted, and other requests wait meanwhile; so larger objects are not evaluated. A new pod
beyond these bounds is denied if a policy enforces `security`: a webhook that fails open must not admit pods that were
not evaluated. Everything else beyond them is an HTTP error, and `failurePolicy` decides. Each bound is many times what
real pods have, and costs some ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain

from webhook.engine.policy_findings import PolicyFinding, settle
from webhook.engine.templates import read_templates
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.pods import Pod
from webhook.policy.policy_set import PolicySet

TEXT_LENGTH = "characters of images, host paths, and names and amounts of resources"
"""Results for these are cached, so their length costs memory."""

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
"""Maximum counts of one object, all its templates together."""


def find_exceeded_limit(request: AdmissionRequest, policies: PolicySet) -> str:
    """Return the bound that an object exceeds, for example "500 containers"; "" if it can be evaluated."""
    if request.pod is None:
        # Each template is read only once those before it are counted.
        paths = policies.template_paths.get((request.group, request.kind), ())
        return _exceeded_limit(template.pod for template in read_templates(request, paths))
    return _exceeded_limit([request.pod]) or (_exceeded_limit([request.old_pod]) if request.old_pod is not None else "")


def deny_oversized_pod(request: AdmissionRequest, bound: str, policies: PolicySet, now: datetime) -> Decision:
    """Return the decision for a pod that exceeds `bound`; without findings if no policy denies it.

    Matching is part of evaluation, so every policy denies it that enforces `security`. A pod that was as large before
    is not denied, because it must still get its finalizers and be deleted.
    """
    if request.pod is None or (request.old_pod is not None and _exceeded_limit([request.old_pod])):
        return Decision()
    enforcing = [each.name for each in policies.policies if each.security and each.security.mode is PolicyMode.ENFORCE]
    message = f"a pod must have at most {bound} to be evaluated, found more"
    finding = PolicyFinding("GPU-S401", (), message, "Reduce the pod to this limit.")
    reported = [((PolicyMode.ENFORCE, name), finding) for name in enforcing]
    findings, exempted = settle(reported, policies.exemptions, request, request.pod, now)
    return Decision(findings, exempted, policies=tuple(enforcing), involves_gpus=bool(findings))


def _exceeded_limit(pods: Iterable[Pod]) -> str:
    counts = dict.fromkeys(MAX_COUNTS, 0)
    for pod in pods:
        for part, count in _count_pod_parts(pod):
            counts[part] += count
            if counts[part] > MAX_COUNTS[part]:
                return f"{MAX_COUNTS[part]} {part}"
    return ""


def _count_pod_parts(pod: Pod) -> Iterator[tuple[str, int]]:
    spec = pod.spec
    yield "pod templates", 1
    yield "containers", len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    yield "volumes", len(spec.volumes)
    yield TEXT_LENGTH, sum([len(volume.host_path.path) for volume in spec.volumes if volume.host_path])
    yield "tolerations", len(spec.tolerations)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is not None:
        yield "node affinity terms", len(affinity.preferred)
        yield "node affinity terms", len(affinity.required.node_selector_terms) if affinity.required else 0
    for container in chain(spec.containers, spec.init_containers, spec.ephemeral_containers):
        yield "environment variables", len(container.env) + len(container.env_from)
        yield "volume mounts", len(container.volume_mounts)
        amounts = [*container.resources.limits.items(), *container.resources.requests.items()]
        yield "resource amounts", len(amounts)
        yield TEXT_LENGTH, len(container.image) + sum([len(name) + len(str(amount)) for name, amount in amounts])
