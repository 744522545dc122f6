"""Step 6, patch: the JSON Patch operations from a pod to its changed form.

Only `add`, and `replace` of members that exist: a patch that does not apply is an error to the user even if the webhook
may fail. An `add` of a whole list or map works whether it was absent, null or empty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from webhook.engine.gpu_requests import container_at
from webhook.engine.pod_context import PodMutation
from webhook.model.annotations import DECISION_ANNOTATION, ORIGINAL_ANNOTATION, parse_decision_record
from webhook.model.decisions import FractionChange, PatchOperation, patch_add, patch_replace
from webhook.model.field_paths import FieldPath
from webhook.model.pods import NodeSelector, NodeSelectorRequirement, Pod, ResourceRequirements
from webhook.well_known import Json

NODE_AFFINITY: FieldPath = ("spec", "affinity", "nodeAffinity")
POD_AFFINITY: FieldPath = ("spec", "affinity", "podAffinity")
REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"

NO_RESOURCES = ResourceRequirements()
"""Of a container without amounts or claims. Its `resources` may be absent, so they are added as a whole."""

MAX_ANNOTATION_BYTES = 256 * 1024
"""Maximum size of all annotations, keys and values.

Source: `TotalAnnotationSizeLimitB` of k8s.io/apimachinery; the API server rejects a pod with more (422).
"""

SIZE_KEYS = ("need", "evidence", "resource", "gpuMilli", "memoryFractions")
"""Keys of the record about the size that was chosen."""

MAX_CHARACTER_BYTES = 4
"""The longest character in UTF-8."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def build_patch(mutation: PodMutation, policies: tuple[str, ...], digest: str) -> tuple[PatchOperation, ...] | None:
    """Return the patch for a mutation; None if the decision record does not fit into the annotations.

    Args:
        policies: Names of the matching policies, for the record.
        digest: Digest of the policy set, for the record.
    """
    if not mutation.changed:
        return ()
    metadata, spec, annotations = mutation.pod.metadata, mutation.pod.spec, _annotations(mutation, policies, digest)
    if annotations is None:
        return None
    spread, runtime_class, fit = mutation.spread_constraints, mutation.runtime_class_name, mutation.applied_choice
    of_nodes = mutation.required_node_affinity or mutation.preferred_node_affinity
    of_pods = mutation.required_pod_affinity or mutation.preferred_pod_affinity
    tolerations = [msgspec.to_builtins(each) for each in mutation.tolerations]
    return (
        *(_resource_operations(mutation) if mutation.limits or mutation.requests else ()),
        *(_fraction_operations(mutation.pod, fit.fraction_changes) if fit is not None else ()),
        *(_affinity_operations(mutation) if of_nodes or of_pods else ()),
        *add_operations(("spec", "tolerations"), spec.tolerations, tolerations),
        *add_operations(("spec", "topologySpreadConstraints"), spec.topology_spread_constraints, spread),
        *([patch_add(("spec", "runtimeClassName"), runtime_class)] if runtime_class else ()),
        *add_operations(("metadata", "labels"), metadata.labels, mutation.labels),
        *add_operations(("metadata", "annotations"), metadata.annotations, annotations),
    )


def _annotations(mutation: PodMutation, policies: tuple[str, ...], digest: str) -> dict[str, str] | None:
    """Return the annotations to add: decision record, original resources and hints; None if they do not fit."""
    record: Json = {
        "policies": list(policies),
        "digest": digest,
        "changed": mutation.changed,
        "changedBy": mutation.changes_by_policy,
    }
    fit = mutation.applied_choice
    if fit is None and DECISION_ANNOTATION in mutation.pod.metadata.annotations:
        record |= _template_record(mutation)
    elif fit is not None:
        record |= {"need": fit.need.words, "evidence": fit.need.evidence, "resource": fit.resource}
        record["gpuMilli"] = fit.gpu_milli
        if fit.fraction_changes:
            record["memoryFractions"] = {
                each.container: {"setting": each.setting, "before": each.before, "after": each.after}
                for each in fit.fraction_changes
            }
    annotations = {**mutation.annotations, DECISION_ANNOTATION: _encode(record).decode()}
    if mutation.original_resources:
        annotations[ORIGINAL_ANNOTATION] = _encode(mutation.original_resources).decode()
    whole = mutation.pod.metadata.annotations | annotations
    texts = [*whole, *whole.values()]
    if sum(map(len, texts)) * MAX_CHARACTER_BYTES <= MAX_ANNOTATION_BYTES:
        return annotations
    encoded = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    return annotations if encoded <= MAX_ANNOTATION_BYTES else None


def _template_record(mutation: PodMutation) -> Json:
    """Return the record of a pod whose template was right-sized, with what is changed now; {} for any other record."""
    text = mutation.pod.metadata.annotations[DECISION_ANNOTATION]
    before = parse_decision_record(text)
    if before is None or not before.resource:
        return {}
    written: Json = msgspec.json.decode(text)
    changed_by = {
        name: [*before.changed_by.get(name, ()), *words] for name, words in mutation.changes_by_policy.items()
    }
    return {
        **{key: written[key] for key in SIZE_KEYS if key in written},
        "changed": [*before.changed, *mutation.changed],
        "changedBy": {**before.changed_by, **changed_by},
    }


def _resource_operations(mutation: PodMutation) -> list[PatchOperation]:
    operations: list[PatchOperation] = []
    sides = (("limits", mutation.limits), ("requests", mutation.requests))
    present = {path: container_at(mutation.pod, path).resources for _, changed in sides for path in changed}
    for path, resources in present.items():
        if resources == NO_RESOURCES:
            added = {side: changed[path] for side, changed in sides if changed.get(path)}
            operations.append(patch_add((*path, "resources"), added))
    for side, changed in sides:
        for path, amounts in changed.items():
            if (resources := present[path]) != NO_RESOURCES:
                target, written = (*path, "resources", side), getattr(resources, side)
                operations.append(patch_replace(target, amounts) if written else patch_add(target, amounts))
    return operations


def _fraction_operations(pod: Pod, changes: Sequence[FractionChange]) -> list[PatchOperation]:
    operations: list[PatchOperation] = []
    for each in changes:
        if each.before:
            operations.append(patch_replace(each.path, each.prefix + each.after))
        else:
            variables = container_at(pod, each.path[:-1]).env
            operations += add_operations(each.path, variables, [{"name": each.setting, "value": each.after}])
    return operations


def _affinity_operations(mutation: PodMutation) -> list[PatchOperation]:
    expressions = [one.to_json() for one in mutation.required_node_affinity]
    node: Json = {PREFERRED_TERMS: mutation.preferred_node_affinity} if mutation.preferred_node_affinity else {}
    if expressions:
        node = {REQUIRED_TERMS: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}, **node}
    terms = {REQUIRED_TERMS: mutation.required_pod_affinity, PREFERRED_TERMS: mutation.preferred_pod_affinity}
    pod = {key: added for key, added in terms.items() if added}
    affinity = mutation.pod.spec.affinity
    if affinity is None:
        whole = {"nodeAffinity": node, "podAffinity": pod}
        return [patch_add(("spec", "affinity"), {key: added for key, added in whole.items() if added})]
    operations: list[PatchOperation] = []
    if affinity.node_affinity is None:
        operations += [patch_add(NODE_AFFINITY, node)] if node else []
    else:
        preferred, path = affinity.node_affinity.preferred, (*NODE_AFFINITY, PREFERRED_TERMS)
        operations += _required_term_operations(affinity.node_affinity.required, mutation.required_node_affinity)
        operations += add_operations(path, preferred, mutation.preferred_node_affinity)
    if affinity.pod_affinity is None:
        operations += [patch_add(POD_AFFINITY, pod)] if pod else []
    else:
        present = {REQUIRED_TERMS: affinity.pod_affinity.required, PREFERRED_TERMS: affinity.pod_affinity.preferred}
        for key, added in pod.items():
            operations += add_operations((*POD_AFFINITY, key), present[key], added)
    return operations


def _required_term_operations(
    required: NodeSelector | None, expressions: Sequence[NodeSelectorRequirement]
) -> list[PatchOperation]:
    """AND expressions into every effective term. Terms are ORed, so a term is only added if there is none."""
    if not expressions:
        return []
    path: FieldPath = (*NODE_AFFINITY, REQUIRED_TERMS)
    if required is None:
        term = {"matchExpressions": [one.to_json() for one in expressions]}
        return [patch_add(path, {"nodeSelectorTerms": [term]})]
    operations: list[PatchOperation] = []
    for index, present in enumerate(required.node_selector_terms):
        if present.match_expressions or present.match_fields:
            target = (*path, "nodeSelectorTerms", index, "matchExpressions")
            missing = [one.to_json() for one in expressions if one not in present.match_expressions]
            operations += add_operations(target, present.match_expressions, missing)
    return operations


def add_operations(
    path: FieldPath, present: Collection[object], added: list[Json] | dict[str, str]
) -> list[PatchOperation]:
    """Add to a list or a map; as a whole where it is absent or empty."""
    if not added:
        return []
    if not present:
        return [patch_add(path, added)]
    members = added.items() if isinstance(added, dict) else [("-", each) for each in added]
    return [patch_add((*path, key), value) for key, value in members]
