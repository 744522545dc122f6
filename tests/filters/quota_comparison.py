"""Our prediction of what quotas reject, and how it differs from the API server's quota admission."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tests.builders import Json
from tests.cluster.predicted_outcomes import parse_quotas, predict_outcomes
from tests.example_cluster import view_of
from tests.filters.quota_admission import CreatedObjects, QuotaAnswer
from tests.filters.random_clusters import RandomCluster
from tests.filters.random_worlds import is_new_claim
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.model.claims import ClaimSpec, DeviceClasses, DeviceClassSpec, claim_charge, devices_by_class


class QuotaDifference(NamedTuple):
    """A claim or pod about which we differ.

    Attributes:
        name: Its kind and name.
        message: Why a quota rejects it; "" if all admit it.
        ours: Our messages, one for each quota that rejects it. Several such lists if the API server may count a name
            for any one of the classes that have it.
    """

    name: str
    message: str
    ours: list[list[str]]


def created_alone(cluster: RandomCluster) -> CreatedObjects:
    """Return each new claim and each pod of a cluster, to be created alone."""
    new = [*filter(is_new_claim, cluster.objects), *cluster.pods]
    return CreatedObjects(cluster, {_name_of(each): [each] for each in new})


def find_quota_differences(created: CreatedObjects, answers: Mapping[str, QuotaAnswer]) -> Iterator[QuotaDifference]:
    """Yield claims and pods that a quota rejects with a message that is not ours, or that only one of us admits."""
    for name, ours in _our_messages(created):
        (message,) = answers[name].messages
        if not any(message in each if message else not each for each in ours):
            yield QuotaDifference(name, message, ours)


def _our_messages(created: CreatedObjects) -> Iterator[tuple[str, list[list[str]]]]:
    quotas = parse_quotas(created.cluster.of_kind("ResourceQuota"))
    classes = view_of(*created.cluster.of_kind("DeviceClass")).devices.classes
    for name, (data,) in created.creates.items():
        if data["kind"] == "Pod":
            outcomes = predict_outcomes(data, (), quotas)
            yield name, [[each for some in outcome.messages for each in some] for outcome in outcomes]
        else:
            spec = msgspec.convert(data["spec"], ClaimSpec)
            charges = [claim_charge(spec, each) for each in _possible_classes(classes, spec)]
            yield name, [[one.message for one in predict_claim_refusals(each, quotas, classes)] for each in charges]


def _possible_classes(classes: DeviceClasses, spec: ClaimSpec) -> Iterator[DeviceClasses]:
    """Yield the classes, each time with another one of those that a claim names as the only one with its name."""
    named = [name for name in devices_by_class(spec) if name in classes]
    for one in named or [""]:
        name = classes[one].extended_resource_name if one else ""
        yield {
            key: DeviceClassSpec() if key != one and key in named and each.extended_resource_name == name else each
            for key, each in classes.items()
        }


def _name_of(data: Json) -> str:
    return f"{data['kind']} {data['metadata']['name']}"
