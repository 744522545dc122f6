"""Step 4, carried out: the fit becomes a change of resources and a node affinity beside it."""

from __future__ import annotations

from functools import lru_cache

from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.hints import is_already_required
from webhook.engine.mutation import PodMutation
from webhook.engine.violations import Violation
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import NEEDS_NODES, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import IsolationLevel, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.offers import GpuOffer
from webhook.model.pods import NodeSelectorRequirement, QuantityText

ContainerResources = dict[FieldPath, dict[str, QuantityText]]


REPORTED_REASONS = NEEDS_NODES | {
    KeepReason.LIMIT_RANGE,
    KeepReason.QUOTA_NOT_COVERING,
    KeepReason.QUOTA_EXCEEDED,
    KeepReason.LIMITS,
    KeepReason.NEW_POLICY,
    KeepReason.SHARED_PROCESSES,
    KeepReason.DRIVER,
    KeepReason.GRAPHICS,
}
"""Reasons worth a word even to a user who declared nothing: there is evidence, and something in its way."""


def apply_fit(fit: OfferChoice, asked: PodGpuRequests, shape: PodMutation, namespace: str, view: ClusterView) -> None:
    """Write a fit into the shape."""
    if fit.resource != WHOLE_GPU:
        _write_substitution(fit, asked, shape, zero=WHOLE_GPU in view.limited_resources(namespace))
        shape.record_change("resources")
    missing = [rule for rule in offer_affinity(fit.offers) if not is_already_required(shape.pod, rule)]
    if missing:
        shape.required_node_affinity += missing
        shape.record_change("nodeAffinity")
    shape.fit = fit


def _write_substitution(fit: OfferChoice, asked: PodGpuRequests, shape: PodMutation, *, zero: bool) -> None:
    for ask in asked.requests:
        resources = ask.container.resources
        sides = {"limits": resources.limits, "requests": resources.requests}
        shape.original_resources[ask.container.name] = {
            side: {WHOLE_GPU: amounts[WHOLE_GPU]} for side, amounts in sides.items() if WHOLE_GPU in amounts
        }
    limits, requests = substitute_resource(asked, fit.resource, zero=zero)
    shape.limits |= limits
    shape.requests |= requests


def right_sizing_violation(
    outcome: OfferChoice | KeepRequest, mode: PolicyMode, asked: PodGpuRequests, *, declared: bool
) -> Violation | None:
    """What the user is told about right-sizing, if anything."""
    if isinstance(outcome, OfferChoice):
        return _fit_violation(outcome, mode, asked)
    reason = outcome.reason
    if reason is KeepReason.OPTED_OUT:
        return kept_violation(outcome, _first_request_field(asked), PolicyMode.AUDIT)
    if (declared and reason is not KeepReason.NO_WHOLE_GPU) or reason in REPORTED_REASONS:
        return kept_violation(outcome, _first_request_field(asked), PolicyMode.WARN)
    return None


def kept_violation(kept: KeepRequest, path: FieldPath, at_most: PolicyMode, fix: str = "") -> Violation:
    """Report that a pod keeps its GPU request, and why."""
    return Violation("GPU-R103", path, f"not right-sized: {kept}", fix, at_most, kept.reason.value)


_ISOLATION_NOTES = {
    IsolationLevel.HARDWARE: "",
    IsolationLevel.MEMORY: "; a neighbour's fault ends it too",
    IsolationLevel.NONE: "; neighbours share its memory and its faults",
}
"""What a user gives up with a share."""


def _fit_violation(fit: OfferChoice, mode: PolicyMode, asked: PodGpuRequests) -> Violation:
    share = f"{fit.gpu_milli / 1000:.2g} of a GPU"
    need = (
        f"{fit.need.words}, {fit.resource} ({share}) covers it{_ISOLATION_NOTES[min(o.isolation for o in fit.offers)]}"
    )
    if mode is PolicyMode.ENFORCE:
        fix = 'To keep a whole GPU, annotate the pod with rightslice.dev/keep: "true".'
        return Violation("GPU-R101", _first_request_field(asked), f"right-sized: {need}", fix, at_most=PolicyMode.WARN)
    return Violation(
        "GPU-R102", _first_request_field(asked), f"could be smaller: {need}; not changed", at_most=PolicyMode.WARN
    )


def _first_request_field(asked: PodGpuRequests) -> FieldPath:
    first = asked.requests[0]
    side = "limits" if first.resource.name in first.container.resources.limits else "requests"
    return (*first.path, "resources", side, first.resource.name)


def offer_affinity(offers: tuple[GpuOffer, ...]) -> tuple[NodeSelectorRequirement, ...]:
    """Expressions that reach these offers and no other shape of the same resource name.

    A resource name alone can stand for several shapes: `mig-1g.10gb` is a quarter of an A100-40GB's memory
    and an eighth of an A100-80GB's.
    """
    return _selector_requirements(tuple([offer.selector for offer in offers]))


@lru_cache(maxsize=1024)
def _selector_requirements(selectors: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[NodeSelectorRequirement, ...]:
    values: dict[str, dict[str, None]] = {}
    for selector in selectors:
        for key, value in selector:
            values.setdefault(key, {})[value] = None
    return tuple(NodeSelectorRequirement(key, "In", tuple(found)) for key, found in values.items())


def substitute_resource(
    asked: PodGpuRequests, resource: str, *, zero: bool
) -> tuple[ContainerResources, ContainerResources]:
    """Limits and requests of every container that asks, once it asks for `resource` instead."""
    limits: ContainerResources = {}
    requests: ContainerResources = {}
    for ask in asked.requests:
        resources = ask.container.resources
        limits[ask.path] = _substitute_amounts(resources.limits, resource, zero=zero)
        if WHOLE_GPU in resources.requests or resource in resources.requests:
            requests[ask.path] = _substitute_amounts(resources.requests, resource, zero=zero)
    return limits, requests


def _substitute_amounts(side: dict[str, QuantityText], resource: str, *, zero: bool) -> dict[str, QuantityText]:
    """Limits or requests of a container after the rewrite.

    The source key becomes "0" where a LimitRange names it: without the key, its default would come back. A "0" that
    stands at the new key already, as a LimitRange gives it, gives way.
    """
    after: dict[str, QuantityText] = {}
    for name, amount in side.items():
        if name == resource:
            continue
        if name != WHOLE_GPU:
            after[name] = amount
            continue
        if zero:
            after[WHOLE_GPU] = "0"
        after[resource] = "1"
    return after
