"""Where a shape stands with the namespace's LimitRanges: what they will say of it, and what can be taken out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from webhook.engine.containers import Changes, amounts_of
from webhook.engine.limitrange.apirules import Broken, broken_rules
from webhook.engine.limitrange.bounds import Refusal, refusals
from webhook.engine.limitrange.chain import Verdict, arrived, chain, verdict
from webhook.engine.limitrange.defaulting import stored
from webhook.engine.limitrange.glance import passes
from webhook.engine.limitrange.holding import Holders, holders_of
from webhook.engine.limitrange.injected import Given, Injected
from webhook.engine.remarks import Remark
from webhook.engine.shape import Shape
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical
from webhook.model.modes import Mode
from webhook.model.paths import Path, dotted
from webhook.model.pods import Amount, Pod
from webhook.model.ranges import Range, Ranges

TAKEN_OUT = "injected GPUs"


def final_amounts(shape: Shape, ranges: Sequence[Range]) -> Holders | None:
    """A shape's amounts with all defaults in; None where one is no quantity, so that no API server reads the pod."""
    try:
        return arrived(shape.pod, ranges, shape.limits, shape.requests)
    except QuantityError:
        return None


def range_remarks(shape: Shape, holders: Holders, ranges: Sequence[Range]) -> list[Remark]:
    """Everything that the API server will say of a shape because of its namespace's LimitRanges.

    Args:
        holders: Its `final_amounts`.
    """
    return [*_made_invalid(shape, broken_rules(holders)), *map(_refused, refusals(holders, ranges))]


def obstacle(pod: Pod, ranges: Ranges, limits: Changes, requests: Changes) -> str:
    """What would refuse a change, with the LimitRange and the field; "" where nothing would."""
    if passes(pod, amounts_of(pod.spec, limits, requests), ranges):
        return ""
    try:
        return _reason(verdict(pod, ranges, limits, requests))
    except QuantityError as error:
        return str(error)


def too_small(shape: Shape, ranges: Ranges, limits: Changes, requests: Changes) -> set[Path]:
    """Where LimitRanges refuse smaller amounts than a shape's for being so small: containers, or the pod as a whole."""
    pod = shape.pod
    if not ranges or passes(pod, amounts_of(pod.spec, limits, requests), ranges):
        return set()
    try:
        known = set(verdict(pod, ranges, shape.limits, shape.requests).refused)
        said = verdict(pod, ranges, limits, requests).refused
    except QuantityError:
        return set()
    return {one.path for one in said if one.bound.kind != "max" and one not in known}


def _reason(found: Verdict) -> str:
    for refusal in found.refused:
        return f"{_sentence(refusal)} at {dotted(_field(refusal))}"
    for broken in found.broken:
        return f"{dotted(broken.path)}: {broken.words}"
    return ""


def _refused(refusal: Refusal) -> Remark:
    return Remark("GPU-L201", _field(refusal), _sentence(refusal), _fix(refusal))


def _sentence(refusal: Refusal) -> str:
    """The API server's own words, and whose they are."""
    return f"{refusal.words} (LimitRange {refusal.range})"


def _field(refusal: Refusal) -> Path:
    if refusal.path == ("spec",):
        return refusal.path
    side = "requests" if "request" in refusal.words.rpartition(refusal.bound.type)[2] else "limits"
    return (*refusal.path, "resources", side, refusal.bound.resource)


def _fix(refusal: Refusal) -> str:
    bound = refusal.bound
    if bound.kind == "maxLimitRequestRatio":
        return f"Write a request of {bound.resource}, and a limit of at most {canonical(bound.amount)} times it."
    words = "at least" if bound.kind == "min" else "at most"
    return f"Ask for {words} {canonical(bound.amount)} {bound.resource}, in limits and requests."


def _made_invalid(shape: Shape, found: list[Broken]) -> Iterator[Remark]:
    """Rules of the API that a shape breaks with what LimitRanges give it, and would not break without."""
    if not found:
        return
    own = set(broken_rules(stored(holders_of(shape.pod, shape.limits, shape.requests))))
    for broken in found:
        if broken not in own:
            yield _invalid(broken)


def _invalid(broken: Broken) -> Remark:
    name = broken.path[-1]
    message = f"what a LimitRange gives makes it invalid: {broken.words}"
    return Remark("GPU-L203", broken.path, message, f"Write {name} yourself, the same in limits and requests.")


def injected_remarks(injected: Injected) -> Iterator[Remark]:
    """That LimitRanger put GPUs in, and whether they are taken out again."""
    after = ", and it is taken out" if injected.out else ""
    if injected.stays:
        after = f", and it cannot be taken out: {injected.stays}"
    for one in injected.given:
        field = (*one.path, "resources", "limits", one.resource)
        message = f"{one.resource} is put in by LimitRange {one.range}, container {one.container} does not ask for it"
        fix = "" if after else f'Write {one.resource}: "0" in its limits.'
        yield Remark("GPU-L202", field, message + after, fix, at_most=Mode.WARN)


def take_out(pod: Pod, shape: Shape, given: tuple[Given, ...], ranges: Ranges) -> Injected:
    """Write "0" over GPUs that LimitRanger put in, in limits and requests: without the pair they would come back.

    Where a LimitRange would refuse the zeros, nothing changes.
    """
    limits: dict[Path, dict[str, Amount]] = {}
    requests: dict[Path, dict[str, Amount]] = {}
    for one in given:
        resources = _resources_at(pod, one.path)
        for side, changes in ((resources[0], limits), (resources[1], requests)):
            changes.setdefault(one.path, dict(side))[one.resource] = "0"
    try:
        original, shaped = chain(pod, limits, requests, ranges)
    except QuantityError as error:
        return Injected(given, stays=str(error))
    if original.passes and not shaped.passes:
        return Injected(given, stays=_reason(shaped))
    shape.limits |= limits
    shape.requests |= requests
    shape.note(TAKEN_OUT)
    return Injected(given, out=True)


def _resources_at(pod: Pod, path: Path) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
    _, kind, index = path
    containers = pod.spec.containers if kind == "containers" else pod.spec.init_containers
    assert isinstance(index, int)
    resources = containers[index].resources
    return resources.limits, resources.requests or resources.limits
