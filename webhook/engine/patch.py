"""Step 8: the few JSON Patch operations from a pod to its shape.

Only `patch_add` and `patch_replace` on members that are there for sure: a patch that does not apply is an error to
the user
even where the webhook may fail. An `patch_add` of a whole list or map serves whether it was absent, null or empty.
"""

from __future__ import annotations

import msgspec

from webhook.engine.mutation import Json, PodMutation
from webhook.model.annotations import DECISION_ANNOTATION, ORIGINAL_ANNOTATION
from webhook.model.decisions import PatchOperation, patch_add, patch_replace
from webhook.model.field_paths import FieldPath
from webhook.model.pods import NodeSelectorRequirement, Pod, ResourceRequirements, Toleration

NODE_AFFINITY: FieldPath = ("spec", "affinity", "nodeAffinity")
POD_AFFINITY: FieldPath = ("spec", "affinity", "podAffinity")
REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
NO_RESOURCES = ResourceRequirements()
"""What a container has that names none: a file may leave `resources` out, so it is then added whole."""
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"
MAX_ANNOTATION_BYTES = 256 * 1024
"""Bytes that the keys and values of all annotations may have together.

Source: `TotalAnnotationSizeLimitB` of k8s.io/apimachinery; the API server refuses a pod with more (422).
"""
MAX_CHARACTER_BYTES = 4
"""Bytes of the longest letter in UTF-8."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def build_patch(shape: PodMutation, policies: tuple[str, ...], digest: str) -> tuple[PatchOperation, ...] | None:
    """The patch from a pod to its shape; empty where nothing changes, None where the record finds no room in the pod.

    Args:
        policies: Names of the policies that spoke, for the record.
        digest: Digest of the policy set, for the record.
    """
    if not shape.changed:
        return ()
    notes = _decision_annotations(shape, policies, digest)
    if not _annotations_fit(shape.pod.metadata.annotations | notes):
        return None
    return (
        *_resource_operations(shape),
        *_affinity_operations(shape),
        *_append_operations(
            ("spec", "tolerations"), shape.pod.spec.tolerations, [toleration_json(t) for t in shape.tolerations]
        ),
        *_append_operations(
            ("spec", "topologySpreadConstraints"), shape.pod.spec.topology_spread_constraints, shape.spread_constraints
        ),
        *_runtime_class_operations(shape),
        *_map_operations(("metadata", "labels"), shape.pod.metadata.labels, shape.labels),
        *_map_operations(("metadata", "annotations"), shape.pod.metadata.annotations, notes),
    )


def _annotations_fit(annotations: dict[str, str]) -> bool:
    """Would the API server take so many annotations? Their bytes are counted only where their letters are many."""
    letters = sum([len(key) + len(value) for key, value in annotations.items()])
    return (
        letters * MAX_CHARACTER_BYTES <= MAX_ANNOTATION_BYTES or _annotation_bytes(annotations) <= MAX_ANNOTATION_BYTES
    )


def _annotation_bytes(annotations: dict[str, str]) -> int:
    return sum(len((key + value).encode(errors="surrogatepass")) for key, value in annotations.items())


def _resource_operations(shape: PodMutation) -> list[PatchOperation]:
    done: list[PatchOperation] = []
    for path in dict.fromkeys((*shape.limits, *shape.requests)):
        if _container_resources(shape.pod, path) == NO_RESOURCES:
            both = (("limits", shape.limits.get(path)), ("requests", shape.requests.get(path)))
            done.append(patch_add((*path, "resources"), {side: amounts for side, amounts in both if amounts}))
    for side, changed in (("limits", shape.limits), ("requests", shape.requests)):
        for path, amounts in changed.items():
            resources = _container_resources(shape.pod, path)
            if resources != NO_RESOURCES:
                done.append(_resource_side_operation(resources, path, side, amounts))
    return done


def _container_resources(pod: Pod, path: FieldPath) -> ResourceRequirements:
    _, kind, index = path
    containers = pod.spec.containers if kind == "containers" else pod.spec.init_containers
    assert isinstance(index, int)
    return containers[index].resources


def _resource_side_operation(
    resources: ResourceRequirements, path: FieldPath, side: str, amounts: Json
) -> PatchOperation:
    """Replace one side of a container's resources, which are there."""
    present = resources.limits if side == "limits" else resources.requests
    target = (*path, "resources", side)
    return patch_replace(target, amounts) if present else patch_add(target, amounts)


def _affinity_operations(shape: PodMutation) -> list[PatchOperation]:
    affinity = shape.pod.spec.affinity
    if affinity is None or not (
        shape.required_node_affinity
        or shape.preferred_node_affinity
        or shape.preferred_pod_affinity
        or shape.required_pod_affinity
    ):
        return _add_whole_affinity(shape)
    done: list[PatchOperation] = []
    if affinity.node_affinity is None:
        node = _node_affinity_json(shape)
        done += [patch_add(NODE_AFFINITY, node)] if node else []
    else:
        done += _required_term_operations(shape)
        done += _append_operations(
            (*NODE_AFFINITY, PREFERRED_TERMS), affinity.node_affinity.preferred, shape.preferred_node_affinity
        )
    if affinity.pod_affinity is None:
        near = _pod_affinity_json(shape)
        done += [patch_add(POD_AFFINITY, near)] if near else []
    else:
        done += _append_operations(
            (*POD_AFFINITY, REQUIRED_TERMS), affinity.pod_affinity.required, shape.required_pod_affinity
        )
        done += _append_operations(
            (*POD_AFFINITY, PREFERRED_TERMS), affinity.pod_affinity.preferred, shape.preferred_pod_affinity
        )
    return done


def _add_whole_affinity(shape: PodMutation) -> list[PatchOperation]:
    affinity: Json = {}
    node = _node_affinity_json(shape)
    if node:
        affinity["nodeAffinity"] = node
    near = _pod_affinity_json(shape)
    if near:
        affinity["podAffinity"] = near
    return [patch_add(("spec", "affinity"), affinity)] if affinity else []


def _node_affinity_json(shape: PodMutation) -> Json:
    node: Json = {}
    if shape.required_node_affinity:
        node[REQUIRED_TERMS] = {
            "nodeSelectorTerms": [{"matchExpressions": [_expression_json(r) for r in shape.required_node_affinity]}]
        }
    if shape.preferred_node_affinity:
        node[PREFERRED_TERMS] = shape.preferred_node_affinity
    return node


def _pod_affinity_json(shape: PodMutation) -> Json:
    terms = {REQUIRED_TERMS: shape.required_pod_affinity, PREFERRED_TERMS: shape.preferred_pod_affinity}
    return {key: found for key, found in terms.items() if found}


def _required_term_operations(shape: PodMutation) -> list[PatchOperation]:
    """AND expressions into every term that can match. Terms are ORed, so none is ever added beside others."""
    affinity = shape.pod.spec.affinity
    node = affinity.node_affinity if affinity else None
    expressions = [_expression_json(rule) for rule in shape.required_node_affinity]
    if not expressions or node is None:
        return []
    path: FieldPath = (*NODE_AFFINITY, REQUIRED_TERMS)
    if node.required is None:
        return [patch_add(path, {"nodeSelectorTerms": [{"matchExpressions": expressions}]})]
    done: list[PatchOperation] = []
    for index, term in enumerate(node.required.node_selector_terms):
        if term.match_expressions or term.match_fields:
            target = (*path, "nodeSelectorTerms", index, "matchExpressions")
            missing = [
                _expression_json(rule) for rule in shape.required_node_affinity if rule not in term.match_expressions
            ]
            done += _append_operations(target, term.match_expressions, missing)
    return done


def _append_operations(path: FieldPath, present: tuple[object, ...], additions: list[Json]) -> list[PatchOperation]:
    """Append to a list, or make it."""
    if not additions:
        return []
    if not present:
        return [patch_add(path, additions)]
    return [patch_add((*path, "-"), addition) for addition in additions]


def _map_operations(path: FieldPath, present: dict[str, str], additions: dict[str, str]) -> list[PatchOperation]:
    """Add members to a map, or make it."""
    if not additions:
        return []
    if not present:
        return [patch_add(path, additions)]
    return [patch_add((*path, key), value) for key, value in additions.items()]


def _runtime_class_operations(shape: PodMutation) -> list[PatchOperation]:
    return [patch_add(("spec", "runtimeClassName"), shape.runtime_class_name)] if shape.runtime_class_name else []


def _expression_json(rule: NodeSelectorRequirement) -> Json:
    if not rule.values:
        return {"key": rule.key, "operator": rule.operator}
    return {"key": rule.key, "operator": rule.operator, "values": list(rule.values)}


def toleration_json(toleration: Toleration) -> Json:
    """A toleration as Kubernetes writes it, without empty fields."""
    written = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    known: Json = {key: value for key, value in written.items() if value}
    if toleration.toleration_seconds is not None:
        known["tolerationSeconds"] = toleration.toleration_seconds
    return known


def _decision_annotations(shape: PodMutation, policies: tuple[str, ...], digest: str) -> dict[str, str]:
    """The annotations that say what was done, by which policies, and on what evidence."""
    record: Json = {
        "policies": list(policies),
        "digest": digest,
        "changed": shape.changed,
        "by": shape.changes_by_policy,
    }
    if shape.fit is not None:
        fit = shape.fit
        record |= {"need": fit.need.words, "evidence": fit.need.evidence, "offer": fit.resource, "milli": fit.gpu_milli}
    notes = {**shape.annotations, DECISION_ANNOTATION: _encode(record).decode()}
    if shape.original_resources:
        notes[ORIGINAL_ANNOTATION] = _encode(shape.original_resources).decode()
    return notes
