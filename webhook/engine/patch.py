"""Step 8: the few JSON Patch operations from a pod to its shape.

Only `add` and `replace` on members that are there for sure: a patch that does not apply is an error to the user
even where the webhook may fail. An `add` of a whole list or map serves whether it was absent, null or empty.
"""

from __future__ import annotations

import msgspec

from webhook.engine.shape import Json, Shape
from webhook.model.decisions import Operation, add, replace
from webhook.model.paths import Path
from webhook.model.pods import Pod, Requirement, Resources, Toleration
from webhook.model.records import DECISION, ORIGINAL

NODE_AFFINITY: Path = ("spec", "affinity", "nodeAffinity")
POD_AFFINITY: Path = ("spec", "affinity", "podAffinity")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NO_RESOURCES = Resources()
"""What a container has that names none: a file may leave `resources` out, so it is then added whole."""
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ANNOTATIONS_MOST = 256 * 1024
"""Bytes that the keys and values of all annotations may have together.

Source: `TotalAnnotationSizeLimitB` of k8s.io/apimachinery; the API server refuses a pod with more (422).
"""
LETTER_MOST = 4
"""Bytes of the longest letter in UTF-8."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def operations(shape: Shape, policies: tuple[str, ...], digest: str) -> tuple[Operation, ...] | None:
    """The patch from a pod to its shape; empty where nothing changes, None where the record finds no room in the pod.

    Args:
        policies: Names of the policies that spoke, for the record.
        digest: Digest of the policy set, for the record.
    """
    if not shape.changed:
        return ()
    notes = _record(shape, policies, digest)
    if not _have_room(shape.pod.metadata.annotations | notes):
        return None
    return (
        *_resources(shape),
        *_affinity(shape),
        *_list(("spec", "tolerations"), shape.pod.spec.tolerations, [toleration_json(t) for t in shape.tolerations]),
        *_list(("spec", "topologySpreadConstraints"), shape.pod.spec.topology_spread_constraints, shape.spread),
        *_runtime_class(shape),
        *_map(("metadata", "labels"), shape.pod.metadata.labels, shape.labels),
        *_map(("metadata", "annotations"), shape.pod.metadata.annotations, notes),
    )


def _have_room(annotations: dict[str, str]) -> bool:
    """Would the API server take so many annotations? Their bytes are counted only where their letters are many."""
    letters = sum([len(key) + len(value) for key, value in annotations.items()])
    return letters * LETTER_MOST <= ANNOTATIONS_MOST or _size(annotations) <= ANNOTATIONS_MOST


def _size(annotations: dict[str, str]) -> int:
    return sum(len((key + value).encode(errors="surrogatepass")) for key, value in annotations.items())


def _resources(shape: Shape) -> list[Operation]:
    done: list[Operation] = []
    for path in dict.fromkeys((*shape.limits, *shape.requests)):
        if _resources_at(shape.pod, path) == NO_RESOURCES:
            both = (("limits", shape.limits.get(path)), ("requests", shape.requests.get(path)))
            done.append(add((*path, "resources"), {side: amounts for side, amounts in both if amounts}))
    for side, changed in (("limits", shape.limits), ("requests", shape.requests)):
        for path, amounts in changed.items():
            resources = _resources_at(shape.pod, path)
            if resources != NO_RESOURCES:
                done.append(_side(resources, path, side, amounts))
    return done


def _resources_at(pod: Pod, path: Path) -> Resources:
    _, kind, index = path
    containers = pod.spec.containers if kind == "containers" else pod.spec.init_containers
    assert isinstance(index, int)
    return containers[index].resources


def _side(resources: Resources, path: Path, side: str, amounts: Json) -> Operation:
    """Replace one side of a container's resources, which are there."""
    present = resources.limits if side == "limits" else resources.requests
    target = (*path, "resources", side)
    return replace(target, amounts) if present else add(target, amounts)


def _affinity(shape: Shape) -> list[Operation]:
    affinity = shape.pod.spec.affinity
    if affinity is None or not (shape.required or shape.preferred or shape.near or shape.together):
        return _new_affinity(shape)
    done: list[Operation] = []
    if affinity.node_affinity is None:
        node = _node_affinity(shape)
        done += [add(NODE_AFFINITY, node)] if node else []
    else:
        done += _required(shape)
        done += _list((*NODE_AFFINITY, PREFERRED), affinity.node_affinity.preferred, shape.preferred)
    if affinity.pod_affinity is None:
        near = _pod_affinity(shape)
        done += [add(POD_AFFINITY, near)] if near else []
    else:
        done += _list((*POD_AFFINITY, REQUIRED), affinity.pod_affinity.required, shape.together)
        done += _list((*POD_AFFINITY, PREFERRED), affinity.pod_affinity.preferred, shape.near)
    return done


def _new_affinity(shape: Shape) -> list[Operation]:
    affinity: Json = {}
    node = _node_affinity(shape)
    if node:
        affinity["nodeAffinity"] = node
    near = _pod_affinity(shape)
    if near:
        affinity["podAffinity"] = near
    return [add(("spec", "affinity"), affinity)] if affinity else []


def _node_affinity(shape: Shape) -> Json:
    node: Json = {}
    if shape.required:
        node[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [_expression(r) for r in shape.required]}]}
    if shape.preferred:
        node[PREFERRED] = shape.preferred
    return node


def _pod_affinity(shape: Shape) -> Json:
    terms = {REQUIRED: shape.together, PREFERRED: shape.near}
    return {key: found for key, found in terms.items() if found}


def _required(shape: Shape) -> list[Operation]:
    """AND expressions into every term that can match. Terms are ORed, so none is ever added beside others."""
    affinity = shape.pod.spec.affinity
    node = affinity.node_affinity if affinity else None
    expressions = [_expression(rule) for rule in shape.required]
    if not expressions or node is None:
        return []
    path: Path = (*NODE_AFFINITY, REQUIRED)
    if node.required is None:
        return [add(path, {"nodeSelectorTerms": [{"matchExpressions": expressions}]})]
    done: list[Operation] = []
    for index, term in enumerate(node.required.node_selector_terms):
        if term.match_expressions or term.match_fields:
            target = (*path, "nodeSelectorTerms", index, "matchExpressions")
            missing = [_expression(rule) for rule in shape.required if rule not in term.match_expressions]
            done += _list(target, term.match_expressions, missing)
    return done


def _list(path: Path, present: tuple[object, ...], additions: list[Json]) -> list[Operation]:
    """Append to a list, or make it."""
    if not additions:
        return []
    if not present:
        return [add(path, additions)]
    return [add((*path, "-"), addition) for addition in additions]


def _map(path: Path, present: dict[str, str], additions: dict[str, str]) -> list[Operation]:
    """Add members to a map, or make it."""
    if not additions:
        return []
    if not present:
        return [add(path, additions)]
    return [add((*path, key), value) for key, value in additions.items()]


def _runtime_class(shape: Shape) -> list[Operation]:
    return [add(("spec", "runtimeClassName"), shape.runtime_class_name)] if shape.runtime_class_name else []


def _expression(rule: Requirement) -> Json:
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


def _record(shape: Shape, policies: tuple[str, ...], digest: str) -> dict[str, str]:
    """The annotations that say what was done, by which policies, and on what evidence."""
    record: Json = {"policies": list(policies), "digest": digest, "changed": shape.changed, "by": shape.by}
    if shape.fit is not None:
        fit = shape.fit
        record |= {"need": fit.need.words, "evidence": fit.need.evidence, "offer": fit.resource, "milli": fit.gpu_milli}
    notes = {**shape.annotations, DECISION: _encode(record).decode()}
    if shape.original:
        notes[ORIGINAL] = _encode(shape.original).decode()
    return notes
