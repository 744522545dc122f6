"""Step 4, carried out: the fit becomes a change of resources and a node affinity beside it."""

from __future__ import annotations

from webhook.engine.asking import Asked
from webhook.engine.hints import required_already
from webhook.engine.remarks import Remark
from webhook.engine.rewriting import affinity_of, replaced
from webhook.engine.shape import Shape
from webhook.model.cluster import ClusterView
from webhook.model.decisions import NEEDS_NODES, Fit, Keep, Why
from webhook.model.modes import Isolation, Mode
from webhook.model.resources import WHOLE_GPU

TELLING = NEEDS_NODES | {
    Why.LIMIT_RANGE,
    Why.QUOTA,
    Why.QUOTA_FULL,
    Why.LIMITS,
    Why.NEW_POLICY,
    Why.PROCESSES,
    Why.DRIVER,
    Why.GRAPHICS,
}
"""Reasons worth a word even to a user who declared nothing: there is evidence, and something in its way."""


def carry_out(fit: Fit, asked: Asked, shape: Shape, namespace: str, view: ClusterView) -> None:
    """Write a fit into the shape."""
    if fit.resource != WHOLE_GPU:
        _replace_resources(fit, asked, shape, zero=WHOLE_GPU in view.limited(namespace))
        shape.note("resources")
    missing = [rule for rule in affinity_of(fit.offers) if not required_already(shape.pod, rule)]
    if missing:
        shape.required += missing
        shape.note("nodeAffinity")
    shape.fit = fit


def _replace_resources(fit: Fit, asked: Asked, shape: Shape, *, zero: bool) -> None:
    for ask in asked.asks:
        resources = ask.container.resources
        sides = {"limits": resources.limits, "requests": resources.requests}
        shape.original[ask.container.name] = {
            side: {WHOLE_GPU: amounts[WHOLE_GPU]} for side, amounts in sides.items() if WHOLE_GPU in amounts
        }
    limits, requests = replaced(asked, fit.resource, zero=zero)
    shape.limits |= limits
    shape.requests |= requests


def sized_remark(outcome: Fit | Keep, mode: Mode, asked: Asked, *, declared: bool) -> Remark | None:
    """What the user is told about right-sizing, if anything."""
    if isinstance(outcome, Fit):
        return _fit_remark(outcome, mode, asked)
    if outcome.why is Why.OPTED_OUT:
        return Remark("GPU-R103", _place(asked), f"stays as it is: {outcome}", at_most=Mode.AUDIT)
    if (declared and outcome.why is not Why.NO_GPU) or outcome.why in TELLING:
        return Remark("GPU-R103", _place(asked), f"stays as it is: {outcome}", at_most=Mode.WARN)
    return None


_APART = {
    Isolation.HARDWARE: "",
    Isolation.MEMORY: "; a neighbour's fault ends it too",
    Isolation.NONE: "; neighbours share its memory and its faults",
}
"""What a user gives up with a share."""


def _fit_remark(fit: Fit, mode: Mode, asked: Asked) -> Remark:
    share = f"{fit.gpu_milli / 1000:.2g} of a GPU"
    need = f"{fit.need.words}, {fit.resource} ({share}) covers it{_APART[min(o.isolation for o in fit.offers)]}"
    if mode is Mode.ENFORCE:
        fix = 'To keep a whole GPU, annotate the pod with rightslice.dev/keep: "true".'
        return Remark("GPU-R101", _place(asked), f"right-sized: {need}", fix, at_most=Mode.WARN)
    return Remark("GPU-R102", _place(asked), f"could be smaller: {need}; not changed", at_most=Mode.WARN)


def _place(asked: Asked) -> tuple[str | int, ...]:
    first = asked.asks[0]
    side = "limits" if first.resource.name in first.container.resources.limits else "requests"
    return (*first.path, "resources", side, first.resource.name)
