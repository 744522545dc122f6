"""What a policy says in vain: of resources that nobody judges."""

from __future__ import annotations

from collections.abc import Iterator

from webhook.model.resources import DEVICE_CLASS_PREFIX, OTHER_VENDOR_PREFIXES
from webhook.policy.overlap import globs_overlap
from webhook.policy.written.kinds import GPUPolicy
from webhook.policy.written.sections import LimitsSpec

EVALUATED_RESOURCES = "nvidia.com/*"
IGNORED_RESOURCES_NOTE = "GPUs of other vendors, and devices by claim, are left alone"


def find_unmatched(policy: GPUPolicy) -> Iterator[str]:
    """A sentence for each, without a full stop; nothing of a policy that is well."""
    name, globs = policy.metadata.name, policy.spec.match.resources
    if globs is not None and not any(globs_overlap(glob, EVALUATED_RESOURCES) for glob in globs):
        must = f"match.resources must match some name of {EVALUATED_RESOURCES}, found {', '.join(globs[:3])}"
        yield f"policy {name} speaks about no pod: {must}. {IGNORED_RESOURCES_NOTE}"
    elif foreign := _foreign_resources(policy.spec.limits):
        only = f"hold only in pods that ask for {EVALUATED_RESOURCES} as well"
        yield f"limits of policy {name} on {', '.join(foreign[:3])} {only}. {IGNORED_RESOURCES_NOTE}"


def _foreign_resources(limits: LimitsSpec | None) -> list[str]:
    """Resources of other vendors, and those that stand for device classes, among what limits name."""
    rules = (*limits.per_pod, *limits.per_container, *limits.per_gpu) if limits is not None else ()
    return [rule.resource for rule in rules if rule.resource.startswith((*OTHER_VENDOR_PREFIXES, DEVICE_CLASS_PREFIX))]
