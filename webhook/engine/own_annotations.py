"""Rightslice's own annotations: those that cannot be read or do not exist, and those that are where nobody reads them.

Every new pod is checked, also one without GPUs or policies: a need that a typing error hides is missed later. Sections
of policies report what they read in their own mode; equal findings become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from webhook.engine.cuda import unreadable_requirement
from webhook.engine.cuda_requirements import parse_cuda_annotation
from webhook.engine.gpu_requests import declared_need_of
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.templates import PodTemplate
from webhook.errors import quote_text
from webhook.model.annotations import (
    CUDA_ANNOTATION,
    CUDA_COMPAT_ANNOTATION,
    GANG_SIZE_ANNOTATION,
    KEEP_ANNOTATION,
    OWN_ANNOTATIONS,
    OWN_PREFIX,
    TOPOLOGY_ANNOTATION,
    USER_ANNOTATIONS,
)
from webhook.model.batch import MAX_GANG_SIZE, invalid_gang_size
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.findings import Finding
from webhook.model.pods import Pod
from webhook.policy.policy_set import NvlinkMode

NVLINK_ANNOTATIONS = {f"nvlink={each}": each for each in NvlinkMode}
"""Values of the topology annotation."""

TRUTH_VALUES = ("true", "false")

MAX_REPORTED_KEYS, MAX_KEY_LENGTH = 3, 64
"""Annotations of one object that are reported, and characters of an unknown one that are compared with known ones."""

IGNORED = "it is ignored"
KEPT = "the pod keeps its request"
"""Effect of any other opt-out than "false": the pod opts out, because that was the intention."""
KEPT_AS_GANG = "until then the pod keeps whole GPUs, as a worker of a gang"


def invalid_annotations(pod: Pod) -> list[PolicyFinding]:
    """Report annotations of ours that cannot be read, and those that do not exist."""
    annotations = pod.metadata.annotations
    keys = [key for key in annotations if key.startswith(OWN_PREFIX)]
    if not keys:
        return []
    unknown = [key for key in keys if key not in OWN_ANNOTATIONS]
    violations = [_unknown_annotation(key) for key in unknown[:MAX_REPORTED_KEYS]]
    violations += declared_need_of(pod).errors
    topology = annotations.get(TOPOLOGY_ANNOTATION)
    if topology is not None and topology not in NVLINK_ANNOTATIONS:
        allowed = ", ".join(NVLINK_ANNOTATIONS)
        violations.append(_invalid_annotation(TOPOLOGY_ANNOTATION, topology, allowed, "Write nvlink=preferred."))
    if GANG_SIZE_ANNOTATION in annotations and (size := invalid_gang_size(pod)) is not None:
        allowed = f"a number of pods from 1 to {MAX_GANG_SIZE}"
        violations.append(
            _invalid_annotation(GANG_SIZE_ANNOTATION, size, allowed, 'Write "4" for four pods.', KEPT_AS_GANG)
        )
    cuda = annotations.get(CUDA_ANNOTATION)
    if cuda is not None and parse_cuda_annotation(cuda) is None:
        violations.append(unreadable_requirement(CUDA_ANNOTATION, cuda, ("metadata", "annotations", CUDA_ANNOTATION)))
    for key, effect in ((KEEP_ANNOTATION, KEPT), (CUDA_COMPAT_ANNOTATION, IGNORED)):
        if (value := annotations.get(key, "true")) not in TRUTH_VALUES:
            must, fix = '"true" or "false"', f'Write {key}: "true".'
            violations.append(_invalid_annotation(key, value, must, fix, effect))
    return violations


def _unknown_annotation(key: str) -> PolicyFinding:
    """Report an annotation that nothing reads, with the one that is meant."""
    near = get_close_matches(key[:MAX_KEY_LENGTH], USER_ANNOTATIONS, n=1, cutoff=0.0)[0]
    message = f"must be an annotation of Rightslice (found {quote_text(key)}); {IGNORED}"
    return PolicyFinding("GPU-R104", ("metadata", "annotations", key), message, f"Write {near}.", PolicyMode.WARN)


def _invalid_annotation(key: str, value: str, must: str, fix: str, effect: str = IGNORED) -> PolicyFinding:
    message = f"must be {must} (found {value[:60]!r}); {effect}"
    return PolicyFinding("GPU-R104", ("metadata", "annotations", key), message, fix, PolicyMode.WARN)


def misplaced_annotations(workload: Any, templates: Iterable[PodTemplate]) -> list[Finding]:
    """Report annotations of ours in the metadata of a workload, or of an object in it, instead of its pod template.

    Controllers give pods the metadata of their template alone. Nothing is reported for kinds without pod templates,
    whose controllers may pass on their own metadata, and for objects of a controller, which copied them.
    """
    found: dict[FieldPath, Finding] = {}
    for template in templates:
        if template.moves or template.spec_path != (*template.path, "spec"):
            continue
        for path, metadata in _metadata_around(workload, template):
            if not metadata.get("ownerReferences"):
                for key in _own_keys(metadata)[:MAX_REPORTED_KEYS]:
                    place = (*path, "annotations", key)
                    found.setdefault(place, _misplaced_annotation(place, template))
    return list(found.values())


def _metadata_around(workload: Any, template: PodTemplate) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """Yield the metadata of the objects that contain a template, the outermost first."""
    parent = workload
    for depth, step in enumerate(template.path):
        metadata = parent.get("metadata") if isinstance(parent, dict) else None
        if isinstance(metadata, dict):
            yield (*template.path[:depth], "metadata"), metadata
        parent = parent[step]


def _own_keys(metadata: Mapping[str, Any]) -> list[str]:
    annotations = metadata.get("annotations")
    keys = annotations if isinstance(annotations, dict) else ()
    return [key for key in keys if key.startswith(OWN_PREFIX)]


def _misplaced_annotation(path: FieldPath, template: PodTemplate) -> Finding:
    message = "has no effect here: only annotations of a pod or of its template are read"
    fix = f"Write it in {format_path((*template.path, 'metadata', 'annotations'))}."
    return Finding("GPU-R104", PolicyMode.WARN, path, message, fix)
