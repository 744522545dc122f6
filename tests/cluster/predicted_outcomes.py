"""The outcomes that our admission chain predicts for a pod, compared with an API server's answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec

from tests.cluster.dryrun import ApiAnswer
from tests.controlplane.build import wanted_version
from tests.controlplane.toolchain import release
from webhook.engine.limitrange.validation import LimitRangeRefusal, predict_admission
from webhook.engine.quota.admission import predict_quota_refusals
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical_text
from webhook.model.cluster_view import POD_LEVEL_LAST_MINOR
from webhook.model.defaulting import (
    LIMIT_RANGER_ANNOTATION,
    apply_defaults,
    apply_request_defaults,
    default_pod_data,
)
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_limit_range
from webhook.model.objects import LimitRange, ResourceQuota
from webhook.model.pod_amounts import PodAmounts
from webhook.model.pods import parse_pod

Json = dict[str, Any]


class PredictedOutcome(NamedTuple):
    """One possible outcome of creating a pod.

    Attributes:
        status: 201 accepted, 400 cannot be parsed, 403 rejected by LimitRanger or a quota, 422 invalid.
        messages: The possible messages, one for each LimitRange or quota that rejects the pod, as sentences.
        resources: Limits and requests of every container, in order.
        reviewed_resources: The same for the pod that a webhook reviews.
        annotation: The annotation that LimitRanger adds.
    """

    status: int
    messages: tuple[tuple[str, ...], ...] = ()
    resources: tuple[Any, ...] = ()
    reviewed_resources: tuple[Any, ...] = ()
    annotation: str | None = None


API_MINOR = release(wanted_version())[1]
"""The minor version of the API server under test."""


def parse_limit_ranges(objects: Sequence[Json]) -> NamespaceLimitRanges:
    """Parse stored LimitRanges."""
    return _in_order(parse_limit_range(msgspec.convert(item, LimitRange)) for item in objects)


def _in_order(ranges: Iterable[ParsedLimitRange]) -> NamespaceLimitRanges:
    """Return LimitRanges in their order of application by this API server."""
    return NamespaceLimitRanges(ranges, before_pod_level=API_MINOR >= POD_LEVEL_LAST_MINOR)


def parse_quotas(objects: Sequence[Json]) -> tuple[ResourceQuota, ...]:
    """Parse stored quotas."""
    return tuple(msgspec.convert(item, ResourceQuota) for item in objects)


def predict_outcomes(
    data: Json, ranges: Sequence[ParsedLimitRange], quotas: Sequence[ResourceQuota]
) -> Iterator[PredictedOutcome]:
    """Yield every possible outcome of a pod: LimitRanger applies LimitRanges in an unspecified order."""
    for order in permutations(ranges):
        try:
            yield _predict_outcome(data, _in_order(order), quotas)
        except QuantityError:
            yield PredictedOutcome(400)


def _messages_of(refusals: Sequence[LimitRangeRefusal], name: str) -> dict[str, None]:
    """Return the distinct messages of one LimitRange."""
    return dict.fromkeys(refusal.message for refusal in refusals if refusal.limit_range == name)


def _predict_outcome(data: Json, order: NamespaceLimitRanges, quotas: Sequence[ResourceQuota]) -> PredictedOutcome:
    pod = parse_pod(data)
    prediction = predict_admission(pod, order)
    if prediction.invalid:
        return PredictedOutcome(422)
    if prediction.refusals:
        names = dict.fromkeys(refusal.limit_range for refusal in prediction.refusals)
        return PredictedOutcome(403, tuple(tuple(_messages_of(prediction.refusals, name)) for name in names))
    quota_refusals = predict_quota_refusals(pod, prediction.amounts, quotas)
    if quota_refusals:
        # Missing amounts are reported before any limit is compared.
        missing_amounts = [refusal for refusal in quota_refusals if not refusal.excesses]
        return PredictedOutcome(403, tuple((refusal.message,) for refusal in missing_amounts or quota_refusals))
    reviewed = default_pod_data(data, order)
    annotation = reviewed["metadata"].get("annotations", {}).get(LIMIT_RANGER_ANNOTATION)
    # The stored pod has the API's own request defaults applied once more.
    return PredictedOutcome(
        201,
        (),
        format_resources(apply_request_defaults(prediction.amounts, order)),
        format_resources(_stored_amounts(reviewed, order)),
        annotation,
    )


def _stored_amounts(data: Json, order: NamespaceLimitRanges) -> PodAmounts:
    return apply_request_defaults(apply_defaults(parse_pod(data), order.without_ranges()), order)


def format_resources(amounts: PodAmounts) -> tuple[Any, ...]:
    """Return limits and requests of every container, and of the pod as a whole, as the API server writes them."""
    each = [*amounts.all_containers, *([amounts.pod_level] if amounts.pod_level else [])]
    return tuple((_format_amounts(item.limits), _format_amounts(item.requests)) for item in each)


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
        message = answer.body["message"].partition(" is forbidden: ")[2]
        return any(_same_message(sentences, message) for sentences in outcome.messages)
    if answer.status != 201:
        return True
    annotations = answer.body["metadata"].get("annotations", {})
    return outcome.resources == outcome.reviewed_resources == answered_resources(
        answer
    ) and outcome.annotation == annotations.get(LIMIT_RANGER_ANNOTATION)


def _same_message(sentences: tuple[str, ...], message: str) -> bool:
    """Return whether a message contains exactly these sentences, in any order: the API server iterates over a map."""
    if len(sentences) == 1:
        return message == sentences[0]
    rest = message.removeprefix("[").removesuffix("]")
    for sentence in sorted(sentences, key=len, reverse=True):
        if sentence not in rest:
            return False
        rest = rest.replace(sentence, "", 1)
    return rest == ", " * (len(sentences) - 1) and message.startswith("[") and message.endswith("]")
