"""Step 4, carried out: the fit becomes a change of resources and a node affinity beside it."""

from __future__ import annotations

from webhook.engine.asking import PodGpuRequests
from webhook.engine.hints import is_already_required
from webhook.engine.remarks import Violation
from webhook.engine.rewriting import offer_affinity, substitute_resource
from webhook.engine.shape import PodMutation
from webhook.model.cluster import ClusterView
from webhook.model.decisions import NEEDS_NODES, OfferChoice, KeepRequest, KeepReason
from webhook.model.modes import IsolationLevel, PolicyMode
from webhook.model.resources import WHOLE_GPU

REPORTED_REASONS = NEEDS_NODES | {
    KeepReason.LIMIT_RANGE,
    KeepReason.QUOTA,
    KeepReason.QUOTA_FULL,
    KeepReason.LIMITS,
    KeepReason.NEW_POLICY,
    KeepReason.PROCESSES,
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


def right_sizing_violation(outcome: OfferChoice | KeepRequest, mode: PolicyMode, asked: PodGpuRequests, *, declared: bool) -> Violation | None:
    """What the user is told about right-sizing, if anything."""
    if isinstance(outcome, OfferChoice):
        return _fit_violation(outcome, mode, asked)
    if outcome.reason is KeepReason.OPTED_OUT:
        return Violation("GPU-R103", _first_request_field(asked), f"stays as it is: {outcome}", at_most=PolicyMode.AUDIT)
    if (declared and outcome.reason is not KeepReason.NO_GPU) or outcome.reason in REPORTED_REASONS:
        return Violation("GPU-R103", _first_request_field(asked), f"stays as it is: {outcome}", at_most=PolicyMode.WARN)
    return None


_ISOLATION_NOTES = {
    IsolationLevel.HARDWARE: "",
    IsolationLevel.MEMORY: "; a neighbour's fault ends it too",
    IsolationLevel.NONE: "; neighbours share its memory and its faults",
}
"""What a user gives up with a share."""


def _fit_violation(fit: OfferChoice, mode: PolicyMode, asked: PodGpuRequests) -> Violation:
    share = f"{fit.gpu_milli / 1000:.2g} of a GPU"
    need = f"{fit.need.words}, {fit.resource} ({share}) covers it{_ISOLATION_NOTES[min(o.isolation for o in fit.offers)]}"
    if mode is PolicyMode.ENFORCE:
        fix = 'To keep a whole GPU, annotate the pod with rightslice.dev/keep: "true".'
        return Violation("GPU-R101", _first_request_field(asked), f"right-sized: {need}", fix, at_most=PolicyMode.WARN)
    return Violation("GPU-R102", _first_request_field(asked), f"could be smaller: {need}; not changed", at_most=PolicyMode.WARN)


def _first_request_field(asked: PodGpuRequests) -> tuple[str | int, ...]:
    first = asked.requests[0]
    side = "limits" if first.resource.name in first.container.resources.limits else "requests"
    return (*first.path, "resources", side, first.resource.name)
