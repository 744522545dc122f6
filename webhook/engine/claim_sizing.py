"""Right-size new resource claims and templates: a request for one GPU becomes a list of choices, the smallest first.

`exactly` becomes `firstAvailable`: the MIG devices of other classes, and the smaller cards among those that were
requested, that cover the declared need, the least memory first; at last what was requested. So whatever could be
allocated before can be allocated after. The request keeps its name, so references of containers and constraints stay
valid.

Only a need that the claim or template declares counts: which pods will use it is not known, so neither is their usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from webhook.engine.demand import UNREADABLE_NEED, is_opted_out
from webhook.engine.gpu_requests import NOTHING_DECLARED, DeclaredNeed, declared_need_of
from webhook.engine.limits import allows_resource
from webhook.engine.matched_policies import CombinedRightSizing, combine_policies
from webhook.engine.new_nodes import view_new_devices
from webhook.engine.patch import MAX_ANNOTATION_BYTES, add_operations
from webhook.engine.smaller_devices import (
    FIRST_AVAILABLE_MINOR,
    DeviceAlternative,
    excludes_smaller_devices,
    find_covering_parts,
    find_requested_devices,
    find_smaller_devices,
    find_unguarded_class,
    is_part_of_card,
    selector_of_alternative,
    write_choice,
)
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import (
    DECISION_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    parse_decision_record,
)
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.claims import (
    LAST_CHOICE,
    ClaimDevices,
    ClaimRequest,
    ClaimSpec,
    DeviceRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    may_hold_gpus,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import (
    Decision,
    GpuNeed,
    KeepReason,
    KeepRequest,
    OfferChoice,
    PatchOperation,
    patch_replace,
)
from webhook.model.dra.claim_weights import count_claim_units
from webhook.model.dra.class_offers import matches_all
from webhook.model.dra.device_selectors import SelectorRuntimeError
from webhook.model.dra.gpu_devices import NVIDIA_DRIVER
from webhook.model.dra.published_devices import published_devices
from webhook.model.dra.selector_cache import keys_told_apart
from webhook.model.enums import EvidenceSource, GpuForm, IsolationLevel, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import CARD_MILLI, DEVICE_CLASS_PREFIX, WHOLE_GPU
from webhook.model.node_groups import SETTINGS
from webhook.model.node_masks import bit_positions
from webhook.model.offers import GpuOffer
from webhook.model.pods import ObjectMeta, Pod, PodSpec
from webhook.model.quota_matching import has_scopes
from webhook.policy.policy_set import PolicySet

MAX_SELECTORS = 32
"""Selectors of a choice that the API server accepts."""

ESCAPED_BYTES = 2
"""Most bytes of a character of JSON in the record: quotes are escaped."""


class _ClaimContext(NamedTuple):
    """A new claim or template, and what decides about it.

    Attributes:
        metadata: Its own metadata.
        of_claims: That by which it is right-sized, of a template also that of its claims.
        spec: The specification of its claims.
        devices: The devices in it, as they are written.
        path: Where the requests stand in the object.
        right_sizing: The rules that match it.
        policy_set: All policies.
        publishing: The nodes whose devices count: those of the cluster, or new ones if no live one has the devices.
    """

    namespace: str
    metadata: ObjectMeta
    of_claims: ObjectMeta
    spec: ClaimSpec
    devices: Mapping[str, Any]
    path: FieldPath
    declared: DeclaredNeed
    right_sizing: CombinedRightSizing
    policy_set: PolicySet
    view: ClusterView
    publishing: ClusterView


def size_claim(
    request: AdmissionRequest, found: ResourceClaim | ResourceClaimTemplate, policies: PolicySet, view: ClusterView
) -> Decision:
    """Return the change of a new claim or template, with its findings; an empty decision if it declares no need.

    An object with a uid is in its final form.
    """
    metadata, written = found.metadata, request.load_object().get("spec") or {}
    of_claims = _metadata_of_claims(found)
    declared = _declared_need(found, of_claims)
    if declared == NOTHING_DECLARED:
        return Decision(outcome=KeepRequest(KeepReason.NO_EVIDENCE))
    path: FieldPath = ("spec", "devices", "requests")
    if isinstance(found, ResourceClaimTemplate):
        spec, written, path = found.spec.spec, written.get("spec") or {}, ("spec", *path)
    else:
        spec = found.spec
    right_sizing = _right_sizing_of(request, of_claims, spec, policies, view)
    if _is_sized(metadata, spec):
        names = (right_sizing.policy,) if right_sizing is not None else ()
        return Decision(outcome=KeepRequest(KeepReason.ALREADY_SIZED), policies=names, involves_gpus=True)
    if metadata.uid:
        return Decision(outcome=KeepRequest(KeepReason.UPDATE))
    if right_sizing is None:
        return Decision()
    context = _ClaimContext(
        namespace=request.namespace,
        metadata=metadata,
        of_claims=of_claims,
        spec=spec,
        devices=written.get("devices") or {},
        path=path,
        declared=declared,
        right_sizing=right_sizing,
        policy_set=policies,
        view=view,
        publishing=_view_with_requested(spec, view),
    )
    outcome = _choose_devices(context)
    return _kept_decision(outcome, context) if isinstance(outcome, KeepRequest) else _sizing_decision(outcome, context)


def _metadata_of_claims(found: ResourceClaim | ResourceClaimTemplate) -> ObjectMeta:
    """Return the labels and annotations by which a claim, or the claims of a template, are right-sized.

    What the template gives to its claims counts before what the template itself has, except that either can opt out.
    """
    own = found.metadata
    if isinstance(found, ResourceClaim):
        return own
    given = found.spec.metadata
    opt_out = {KEEP_ANNOTATION: own.annotations[KEEP_ANNOTATION]} if is_opted_out(own) else {}
    return ObjectMeta(labels=own.labels | given.labels, annotations=own.annotations | given.annotations | opt_out)


def _declared_need(found: ResourceClaim | ResourceClaimTemplate, of_claims: ObjectMeta) -> DeclaredNeed:
    """Return the need that a claim or template declares, with errors where each annotation stands."""
    declared = declared_need_of(Pod(of_claims, PodSpec()))
    given = found.spec.metadata.annotations if isinstance(found, ResourceClaimTemplate) else {}
    errors = [
        msgspec.structs.replace(one, path=("spec", *one.path)) if one.path[-1] in given else one
        for one in declared.errors
    ]
    return msgspec.structs.replace(declared, errors=tuple(errors))


def _is_sized(metadata: ObjectMeta, spec: ClaimSpec) -> bool:
    """Return whether a claim has the record and the choices that right-sizing writes."""
    record = parse_decision_record(metadata.annotations.get(DECISION_ANNOTATION, ""))
    choices = [one for request in spec.devices.requests for one in request.first_available]
    return record is not None and bool(record.resource and choices) and choices[-1].name == LAST_CHOICE


def _right_sizing_of(
    request: AdmissionRequest, metadata: ObjectMeta, spec: ClaimSpec, policies: PolicySet, view: ClusterView
) -> CombinedRightSizing | None:
    """Return the rules of the policies that match a claim; None without any.

    It counts as a request for a whole GPU. Match conditions and rollouts are about pods: where right-sizing has one, it
    is not known whether it applies.
    """
    classes = dict.fromkeys(one.exactly.device_class_name for one in spec.devices.requests if one.exactly)
    extended = [view.classes[name].extended_resource_name for name in classes if name in view.classes]
    names = tuple(filter(None, (WHOLE_GPU, *extended, *[DEVICE_CLASS_PREFIX + name for name in classes])))
    labels = view.labels_of(request.namespace)
    of_namespace = request.namespace, labels, request.operation
    matching, uncertain = policies.candidates_for(*of_namespace, names, metadata.labels)
    uncertain |= sum(1 << index for index, _ in policies.rollouts)
    for index, policy in enumerate(policies.policies):
        if policy.right_sizing is not None and matching & uncertain & 1 << index:
            return None
    return combine_policies(policies, matching & ~uncertain, 0).right_sizing


def _view_with_requested(spec: ClaimSpec, view: ClusterView) -> ClusterView:
    """Return the view, or that of new nodes of the settings if no live device can be what a claim requests.

    It is the view where that is not known, as of a selector that fails on a live device.
    """
    requests = spec.devices.requests
    requested = requests[0].exactly if len(requests) == 1 else None
    found = find_requested_devices(requested, view) if requested is not None else None
    return (view_new_devices(view, SETTINGS) or view) if found == [] else view


class _Sizing(NamedTuple):
    """The choices of a request, as they are written, and the smallest devices that it may get."""

    choices: Sequence[Mapping[str, Any]]
    smallest: DeviceAlternative


def _choose_devices(context: _ClaimContext) -> _Sizing | KeepRequest:
    """Return the choices of the only request of a claim, or why the claim keeps it."""
    rule, view, devices = context.right_sizing.rule, context.view, context.spec.devices
    if is_opted_out(context.of_claims):
        return KeepRequest(KeepReason.OPTED_OUT)
    if context.declared.errors:
        return UNREADABLE_NEED
    if context.declared.memory_mib is None:
        return KeepRequest(KeepReason.NO_EVIDENCE, "only compute is declared")
    if EvidenceSource.DECLARED not in rule.evidence or GpuForm.MIG not in rule.forms:
        return KeepRequest(KeepReason.FORM_NOT_ALLOWED)
    if view.is_stale:
        return KeepRequest(KeepReason.STALE_VIEW)
    if (reason := _reason_by_others(context) or _unsizable_reason(context)) is not None:
        return reason
    requested = devices.requests[0].exactly or DeviceRequest()
    smaller = find_smaller_devices(requested, context.declared, rule.min_saving_percent, context.publishing)
    if not (found := _without_errors(smaller, requested, context)):
        return _explain_no_choice(requested, context)
    written: Mapping[str, Any] = context.devices["requests"][0]["exactly"]
    needed = context.declared.memory_mib
    choices = [*(write_choice(one, written, needed) for one in found), {"name": LAST_CHOICE, **written}]
    if (reason := _size_reason(choices, context.metadata)) is not None:
        return reason
    after = ClaimSpec(ClaimDevices((msgspec.convert({"firstAvailable": choices}, ClaimRequest),)))
    if more := _key_charged_more(context.spec, after, view, context.namespace):
        return KeepRequest(KeepReason.QUOTA_CHARGES_MORE, more)
    if (reason := _reason_by_policies(after, context)) is not None:
        return reason
    return _Sizing(choices, min(found, key=lambda one: one.size.gpu_milli))


def _reason_by_others(context: _ClaimContext) -> KeepRequest | None:
    """Return which other program reads the claim and takes no choices."""
    if context.view.queues.serves(context.namespace):
        return KeepRequest(KeepReason.QUEUE_WITHOUT_CHOICES, "Kueue")
    if context.view.volcano_queues:
        return KeepRequest(KeepReason.QUEUE_WITHOUT_CHOICES, "Volcano")
    return KeepRequest(KeepReason.KARPENTER) if context.view.group_sources.pools else None


def _size_reason(choices: Sequence[Mapping[str, Any]], metadata: ObjectMeta) -> KeepRequest | None:
    """Return why the API server might not store a claim with these choices: it limits selectors and annotations."""
    if any(len(one.get("selectors") or ()) > MAX_SELECTORS for one in choices):
        return KeepRequest(KeepReason.CONSTRAINED_CLAIM, f"{MAX_SELECTORS} selectors: the API server allows no more")
    record = len(msgspec.json.encode(choices)) * ESCAPED_BYTES
    fits = len(msgspec.json.encode(metadata.annotations)) + record <= MAX_ANNOTATION_BYTES
    return None if fits else KeepRequest(KeepReason.RECORD_TOO_LARGE)


def _unsizable_reason(context: _ClaimContext) -> KeepRequest | None:
    """Return why a claim must keep its requests, whatever its need: it is not a plain one for a single device."""
    devices = context.spec.devices
    if len(devices.requests) != 1:
        return KeepRequest(KeepReason.MULTIPLE_GPUS if devices.requests else KeepReason.NO_GPU_REQUEST)
    if devices.constraints or context.devices.get("config"):
        return KeepRequest(KeepReason.CONSTRAINED_CLAIM)
    only = devices.requests[0].exactly
    if only is None or only.admin_access or only.allocation_mode != "ExactCount":
        return KeepRequest(KeepReason.NOT_ONE_DEVICE)
    return KeepRequest(KeepReason.MULTIPLE_GPUS) if only.count != 1 else None


def _explain_no_choice(requested: DeviceRequest, context: _ClaimContext) -> KeepRequest:
    """Return why a request gets no choices: smaller devices save too little, or none covers the need."""
    declared, required, view = context.declared, context.right_sizing.rule.min_saving_percent, context.publishing
    if context.view.api_minor < FIRST_AVAILABLE_MINOR:
        return KeepRequest(KeepReason.KUBERNETES_TOO_OLD, "" if context.view.api_minor else "its version is unknown")
    if (reason := _reason_by_devices(requested, view)) is not None:
        return reason
    found = find_smaller_devices(requested, declared, 0, view)
    if excludes_smaller_devices(requested, declared, required if found else 0, view):
        return KeepRequest(KeepReason.SELECTORS, declared.text)
    requested_devices = find_requested_devices(requested, view) or ()
    if not found and all(is_part_of_card(each) for each in requested_devices):
        return KeepRequest(KeepReason.NOTHING_SMALLER, declared.text)
    if not (found := found or find_covering_parts(requested, declared, view)):
        unguarded = find_unguarded_class(requested, declared, view)
        return KeepRequest(KeepReason.UNGUARDED_CLASS if unguarded else KeepReason.NO_OFFER, unguarded or declared.text)
    if not (usable := _without_errors(found, requested, context)):
        return KeepRequest(KeepReason.SELECTORS, "selectors of the claim or of the class fail on devices of live nodes")
    best = min(usable, key=lambda one: one.size.gpu_milli)
    weight = f"{best.profile or 'a smaller card'} is {best.size.gpu_milli / CARD_MILLI:.2g} of a GPU"
    detail = f"{declared.text} declared, {weight}, the policy requires a saving of {required}% or more"
    return KeepRequest(KeepReason.SAVING_TOO_SMALL, detail)


def _reason_by_devices(requested: DeviceRequest, view: ClusterView) -> KeepRequest | None:
    """Return why no device that a request may get is compared with others, whatever the need."""
    name = requested.device_class_name
    if not may_hold_gpus(name, view.classes):
        return KeepRequest(KeepReason.NO_GPU_REQUEST)
    current = find_requested_devices(requested, view) or []
    if any(each.pool.driver != NVIDIA_DRIVER for each in current):
        return KeepRequest(KeepReason.OTHER_DRIVER)
    if current:
        return None
    absent = " does not exist" if view.devices.lacks_class(name) else ""
    return KeepRequest(KeepReason.NO_DEVICE, f"device class {name}{absent}" if name else "it names no device class")


def _without_errors(
    found: Sequence[DeviceAlternative], requested: DeviceRequest, context: _ClaimContext
) -> Sequence[DeviceAlternative]:
    """Return the choices whose selectors have a value for every live device.

    Choices that are devices of new nodes do not show that. The scheduler evaluates the selectors of a claim on all
    devices of the class: an error ends scheduling on all nodes, while the original request waits for a new node.
    """
    if context.publishing is context.view:
        return found
    return [one for one in found if _has_values(_expressions_of(one, requested, context), context.view)]


def _expressions_of(one: DeviceAlternative, requested: DeviceRequest, context: _ClaimContext) -> tuple[str, ...]:
    """Return the selectors of a choice, in the order in which they are evaluated."""
    selectors = (*context.view.devices.classes[one.device_class].selectors, *requested.selectors)
    of_choice = [selector_of_alternative(one, context.declared.memory_mib or 0)] if one.is_part else []
    return (*[each.cel.expression for each in selectors], *of_choice)


def _has_values(expressions: Sequence[str], view: ClusterView) -> bool:
    """Return whether the selectors of a request are evaluated without an error on all published devices."""
    try:
        for each in published_devices(view.devices.pools, view.fleet, keys_told_apart(expressions)).kinds:
            matches_all(expressions, each.pool.driver, each.device)
    except (SelectorRuntimeError, UnmodeledExpressionError):
        return False
    return True


def _key_charged_more(before: ClaimSpec, after: ClaimSpec, view: ClusterView, namespace: str) -> str:
    """Return the first key of a quota that charges a changed claim more than the original; "" if none does."""
    charged, originally = map(view.claim_context(namespace).charge, (after, before))
    more = {key for key, amount in charged.items() if amount > originally.get(key, 0)}
    keys = (
        key for quota in view.quotas(namespace) if not has_scopes(quota) for key in quota.status.hard or quota.spec.hard
    )
    return next((key for key in keys if key in more), "")


def _reason_by_policies(after: ClaimSpec, context: _ClaimContext) -> KeepRequest | None:
    """Return which policy could reject a pod with the changed claim that it does not reject with the original one.

    A policy for some pods counts as if it matched all.
    """
    known, view = context.policy_set.policies, context.publishing
    names, before = (
        {name for one in count_claim_units(each, view.devices, view.fleet) for name in one.units}
        for each in (after, context.spec)
    )
    matched = _policies_for(tuple(sorted(before)), context)
    for index in sorted(_policies_for(tuple(sorted(names)), context)):
        policy = known[index]
        limits = policy.limits if policy.limits is not None and policy.limits.mode is PolicyMode.ENFORCE else None
        denied = [name for name in sorted(names - before) if limits is not None and not allows_resource(limits, name)]
        if denied:
            return KeepRequest(KeepReason.LIMITS, denied[0])
        if index not in matched and policy.strictest_mode is PolicyMode.ENFORCE:
            return KeepRequest(KeepReason.NEW_POLICY, f"policy {policy.name} may match the smaller device")
    return None


def _policies_for(names: tuple[str, ...], context: _ClaimContext) -> set[int]:
    """Return the positions of the policies that may match a pod with these resources."""
    labels = context.view.labels_of(context.namespace)
    return set(bit_positions(context.policy_set.candidates_for(context.namespace, labels, "CREATE", names).matching))


def _kept_decision(kept: KeepRequest, context: _ClaimContext) -> Decision:
    """Return why a claim keeps its request, after the annotations that cannot be read."""
    rule, policy, declared = context.right_sizing.rule, context.right_sizing.policy, context.declared
    mode = min(rule.mode, PolicyMode.WARN)
    findings = [Finding(one.code, mode, one.path, one.message, one.fix) for one in declared.errors]
    if kept.reason is not KeepReason.NO_GPU_REQUEST and (declared.memory_mib is not None or not declared.errors):
        mode = PolicyMode.AUDIT if kept.reason is KeepReason.OPTED_OUT else mode
        message, fix = f"not right-sized: {kept}", kept.reason.fix
        findings.append(Finding("GPU-R103", mode, context.path, message, fix, reason=kept.reason.value))
    involves_gpus = kept.reason is not KeepReason.NO_GPU_REQUEST
    return Decision(findings=tuple(findings), outcome=kept, policies=(policy,), involves_gpus=involves_gpus)


def _sizing_decision(sizing: _Sizing, context: _ClaimContext) -> Decision:
    mode = context.right_sizing.rule.mode
    names = ", ".join(str(choice["name"]) for choice in sizing.choices if choice["name"] != LAST_CHOICE)
    least = f"{sizing.smallest.size.gpu_milli / CARD_MILLI:.2g}"
    size = f"the first available of {names} (from {least} of a GPU), or the original request if none is available"
    message = f"right-sized to {size}; need: {context.declared.text} declared"
    enforced = mode is PolicyMode.ENFORCE
    code, message = ("GPU-R101", message) if enforced else ("GPU-R102", f"would be {message}; not changed")
    fix = f'To keep the request, annotate the object with {KEEP_ANNOTATION}: "true".'
    finding = Finding(code, min(mode, PolicyMode.WARN), (*context.path, 0), message, fix)
    patch = tuple(_operations(sizing, context)) if enforced else ()
    return Decision(
        findings=(finding,),
        patch=patch,
        outcome=_choice_of(sizing.smallest, context),
        applied=enforced,
        needed_mib=context.declared.memory_mib or 0,
        policies=(context.right_sizing.policy,),
        involves_gpus=True,
    )


def _choice_of(smallest: DeviceAlternative, context: _ClaimContext) -> OfferChoice:
    """Return the smallest devices as an offer, for reports."""
    declared, size = context.declared, smallest.size
    words = f"{declared.text} declared"
    need = GpuNeed(declared.memory_mib or 0, declared.compute_milli, EvidenceSource.DECLARED, words)
    offer = GpuOffer(
        resource=smallest.device_class,
        form=GpuForm.MIG if smallest.profile else GpuForm.WHOLE,
        product=smallest.product,
        profile=smallest.profile,
        memory_mib=size.memory_mib,
        compute_milli=size.compute_milli,
        gpu_milli=size.gpu_milli,
        isolation=IsolationLevel.HARDWARE,
        replicas=1,
        selector=(),
        taints=(),
        nodes=smallest.nodes,
        capacity=0,
    )
    return OfferChoice(smallest.device_class, (offer,), need, context.right_sizing.policy)


def _operations(sizing: _Sizing, context: _ClaimContext) -> Iterator[PatchOperation]:
    """Yield the change, and annotations: the record, and the request before."""
    written: Mapping[str, Any] = context.devices["requests"][0]
    changed = {key: value for key, value in written.items() if key != "exactly"} | {"firstAvailable": sizing.choices}
    yield patch_replace((*context.path, 0), changed)
    record = {
        "policies": [context.right_sizing.policy],
        "digest": context.policy_set.digest,
        "changed": ["devices"],
        "need": f"{context.declared.text} declared",
        "resource": sizing.smallest.device_class,
        "gpuMilli": sizing.smallest.size.gpu_milli,
    }
    texts = {
        key: msgspec.json.encode(value, order="deterministic").decode()
        for key, value in ((DECISION_ANNOTATION, record), (ORIGINAL_ANNOTATION, written))
    }
    yield from add_operations(("metadata", "annotations"), context.metadata.annotations, texts)
