"""The outcomes that our admission chain predicts for a pod, compared with an API server's answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec

from tests.cluster.dryrun import ApiAnswer
from webhook.engine.limitrange.validation import LimitRangeRefusal, predict_admission
from webhook.engine.quota.admission import predict_quota_refusals
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical_text
from webhook.model.defaulting import LIMIT_RANGER_ANNOTATION, apply_request_defaults, default_pod_data
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_limit_range
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pod_amounts import PodAmounts, read_pod_amounts
from webhook.model.pods import parse_pod

Json = dict[str, Any]


class PredictedOutcome(NamedTuple):
    """One possible outcome of creating a pod.

    Attributes:
        status: 201 taken, 400 cannot be read, 403 LimitRanger or a quota refuses it, 422 the API's rules do.
        words: What may be said: one message for each LimitRange or quota that refuses it, as its sentences.
        resources: Limits and requests of every container, in order.
        seen: The same of the pod that a webhook is shown.
        note: What LimitRanger leaves on it.
    """

    status: int
    messages: tuple[tuple[str, ...], ...] = ()
    resources: tuple[Any, ...] = ()
    reviewed_resources: tuple[Any, ...] = ()
    annotation: str | None = None


def parse_limit_ranges(objects: Sequence[Json]) -> tuple[ParsedLimitRange, ...]:
    """Parse stored LimitRanges."""
    return tuple(parse_limit_range(msgspec.convert(item, LimitRange)) for item in objects)


def parse_quotas(objects: Sequence[Json]) -> tuple[ResourceQuota, ...]:
    """Parse stored quotas."""
    return tuple(msgspec.convert(item, ResourceQuota) for item in objects)


def predict_outcomes(
    data: Json, ranges: Sequence[ParsedLimitRange], quotas: Sequence[ResourceQuota]
) -> Iterator[PredictedOutcome]:
    """Yield every possible outcome of a pod: LimitRanger applies LimitRanges in an unspecified order."""
    for order in permutations(ranges):
        try:
            yield _predict_outcome(data, order, quotas)
        except QuantityError:
            yield PredictedOutcome(400)


def _messages_of(refusals: Sequence[LimitRangeRefusal], name: str) -> dict[str, None]:
    """Return the distinct messages of one LimitRange."""
    return dict.fromkeys(refusal.message for refusal in refusals if refusal.limit_range == name)


def _predict_outcome(
    data: Json, order: Sequence[ParsedLimitRange], quotas: Sequence[ResourceQuota]
) -> PredictedOutcome:
    pod = parse_pod(data)
    judged = predict_admission(pod, order)
    if judged.invalid:
        return PredictedOutcome(422)
    if judged.refusals:
        names = dict.fromkeys(refusal.limit_range for refusal in judged.refusals)
        return PredictedOutcome(403, tuple(tuple(_messages_of(judged.refusals, name)) for name in names))
    refused = predict_quota_refusals(pod, judged.amounts, quotas)
    if refused:
        # A form that a quota does not take is told before any ceiling is looked at.
        formal = [refusal for refusal in refused if not refusal.excesses]
        return PredictedOutcome(403, tuple((refusal.message,) for refusal in formal or refused))
    seen = default_pod_data(data, NamespaceLimitRanges(order))
    note = seen["metadata"].get("annotations", {}).get(LIMIT_RANGER_ANNOTATION)
    # What is read back has the API's own defaults put in once more.
    return PredictedOutcome(
        201, (), format_resources(apply_request_defaults(judged.amounts)), format_resources(_stored_amounts(seen)), note
    )


def _stored_amounts(data: Json) -> PodAmounts:
    return apply_request_defaults(read_pod_amounts(parse_pod(data), {}, {}))


def format_resources(holders: PodAmounts) -> tuple[Any, ...]:
    """Limits and requests of every container, and of the pod as a whole, as the API server writes them."""
    each = [*holders.all_containers, *([holders.pod_level] if holders.pod_level else [])]
    return tuple((_format_amounts(holder.limits), _format_amounts(holder.requests)) for holder in each)


def answered_resources(answer: ApiAnswer) -> tuple[Any, ...]:
    """Return limits and requests of every container in the API server's answer."""
    spec = answer.body["spec"]
    each = [*spec["containers"], *spec.get("initContainers", ())]
    sides = [container["resources"] for container in each] + ([spec["resources"]] if "resources" in spec else [])
    return tuple(
        (dict(sorted(side.get("limits", {}).items())), dict(sorted(side.get("requests", {}).items()))) for side in sides
    )


def _format_amounts(amounts: Any) -> dict[str, str]:
    return {name: canonical_text(amount) for name, amount in sorted(amounts.items())}


def matches_answer(outcome: PredictedOutcome, answer: ApiAnswer) -> bool:
    """Return whether the API server's answer matches the outcome."""
    if outcome.status != answer.status:
        return False
    if answer.status == 403:
        said = answer.body["message"].partition(" is forbidden: ")[2]
        return any(_same_message(parts, said) for parts in outcome.messages)
    if answer.status != 201:
        return True
    notes = answer.body["metadata"].get("annotations", {})
    return outcome.resources == outcome.reviewed_resources == answered_resources(
        answer
    ) and outcome.annotation == notes.get(LIMIT_RANGER_ANNOTATION)


def _same_message(parts: tuple[str, ...], said: str) -> bool:
    """Return whether a message holds the same sentences, each once; the API server iterates a map, so in any order."""
    if len(parts) == 1:
        return said == parts[0]
    rest = said.removeprefix("[").removesuffix("]")
    for part in sorted(parts, key=len, reverse=True):
        if part not in rest:
            return False
        rest = rest.replace(part, "", 1)
    return rest == ", " * (len(parts) - 1) and said.startswith("[") and said.endswith("]")
