"""A pod with volume claims is right-sized if a slice is free where its volumes are; else it says why it is not."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.example_cluster import NO_USAGE, NOW, mig_node, policies_of, policy, request_of, review, view_of, whole_node
from tests.storage_builders import (
    LATER,
    ZONE,
    claim_volume,
    ephemeral_volume,
    make_capacity,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_volume,
)
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice

SIZING = "mode: enforce\nrightSizing: {}"
WAITING = "mode: enforce\nrightSizing: {whenFull: wait}"


def in_zone(node: Json, zone: str) -> Json:
    """Return a node in a zone."""
    node["metadata"]["labels"][ZONE] = zone
    return node


def cluster(*objects: Json) -> tuple[Json, ...]:
    """Return whole cards in zone a and slices in zone b, with other objects."""
    return (in_zone(whole_node(), "a"), in_zone(mig_node(), "b"), *objects)


def small(*volumes: Json) -> PodMaker:
    """Return a pod that requests one GPU, needs 8Gi and has volumes."""
    return make_pod().gpus(1).needs("8Gi").spec(volumes=list(volumes))


ONE = small(claim_volume("data"))
OTHER = make_pod("other").spec(volumes=[claim_volume("data")])


class Case(NamedTuple):
    objects: tuple[Json, ...]
    pod: PodMaker
    reason: KeepReason | None = None
    detail: str = ""


CASES = {
    "the volume is in the zone of the slices": Case(
        (make_claim("data", volume="v"), make_volume("v", zones=("b",))), ONE
    ),
    "the volume is in another zone": Case(
        (make_claim("data", volume="v"), make_volume("v", zones=("a",))),
        ONE,
        KeepReason.VOLUME_UNREACHABLE,
        "nvidia.com/mig-1g.10gb: volume v of claim data is not reachable by its node affinity",
    ),
    "the labels of the volume name another zone": Case(
        (make_claim("data", volume="v"), make_volume("v", labels={ZONE: "a"})),
        ONE,
        KeepReason.VOLUME_UNREACHABLE,
        f"nvidia.com/mig-1g.10gb: volume v of claim data is in {ZONE}=a",
    ),
    "the claim does not exist": Case(
        (make_class(),), ONE, KeepReason.VOLUME_UNKNOWN, "no claim data in namespace team"
    ),
    "nothing is known about claims": Case(
        (),
        ONE,
        KeepReason.VOLUME_UNKNOWN,
        "no object about storage is known; a snapshot needs persistentvolumeclaims, persistentvolumes, "
        "storageclasses and csinodes",
    ),
    "the claim is not bound": Case(
        (make_claim("data"), make_class(mode="Immediate")),
        ONE,
        KeepReason.VOLUME_UNBOUND,
        "claim data is not bound yet",
    ),
    "the claim is not bound, and its class does not exist": Case(
        (make_claim("data", "other"), make_class()),
        ONE,
        KeepReason.VOLUME_UNBOUND,
        "claim data is not bound yet, and its class other was not found",
    ),
    "the class of an ephemeral volume does not exist": Case(
        (make_class("other"),),
        small(ephemeral_volume("tmp")),
        KeepReason.VOLUME_UNBOUND,
        "an ephemeral volume: class fast was not found",
    ),
    "the class of an ephemeral volume does not wait for a pod": Case(
        (make_class(mode="Immediate"),),
        small(ephemeral_volume("tmp")),
        KeepReason.VOLUME_UNBOUND,
        "an ephemeral volume: class fast does not wait for a pod",
    ),
    "the claim is in use": Case(
        (make_claim("data", volume="v", modes=("ReadWriteOncePod",)), make_volume("v"), OTHER.build()),
        ONE,
        KeepReason.VOLUME_IN_USE,
        "claim data (ReadWriteOncePod) is in use by another pod",
    ),
    "the claim may be shared, and would move to the zone of the slices": Case(
        (make_claim("data"), make_class()), ONE, KeepReason.VOLUME_SHARED, "claim data of class fast"
    ),
    "the claim may be shared, and its driver has no zones": Case(
        (make_claim("data"), make_class(), make_csi_node("whole"), make_csi_node("mig")), ONE
    ),
    "the claim is for one pod and can be bound in the zone of the slices": Case(
        (make_claim("data", modes=("ReadWriteOncePod",)), make_class(zones=("b",))), ONE
    ),
    "the class has no topology with slices": Case(
        (make_class(zones=("a",)),),
        small(ephemeral_volume("tmp")),
        KeepReason.VOLUME_UNREACHABLE,
        "nvidia.com/mig-1g.10gb: an ephemeral volume: no volume can be bound",
    ),
    "an ephemeral volume fits": Case((make_class(),), small(ephemeral_volume("tmp"))),
    "too little storage is free with the slices": Case(
        (make_class(), make_driver(), make_capacity("one", "1Ti", zone="a"), make_capacity("two", "1Gi", zone="b")),
        small(ephemeral_volume("tmp")),
        KeepReason.VOLUME_UNREACHABLE,
        "nvidia.com/mig-1g.10gb: an ephemeral volume: too little storage is free",
    ),
    "no more volumes can be attached with the slices": Case(
        (make_class(), make_csi_node("mig", limit=1)),
        small(ephemeral_volume("one"), ephemeral_volume("two")),
        KeepReason.VOLUME_UNREACHABLE,
        "nvidia.com/mig-1g.10gb: no more volumes of disk.example.com fit",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_with_claims_is_right_sized_where_its_volumes_are(case: Case) -> None:
    outcome = review(case.pod, SIZING, nodes=cluster(*case.objects)).outcome
    if case.reason is None:
        assert isinstance(outcome, OfferChoice)
    else:
        assert isinstance(outcome, KeepRequest)
        assert (outcome.reason, outcome.detail) == (case.reason, case.detail)


WAITS = {
    "for a claim that does not exist": Case((make_class(),), ONE),
    "for a claim that is not bound": Case((make_claim("data"), make_class(mode="Immediate")), ONE),
    "for storage": Case((make_class(), make_driver()), small(ephemeral_volume("tmp"))),
    "never for a zone": Case(
        (make_claim("data", volume="v"), make_volume("v", zones=("a",))), ONE, KeepReason.VOLUME_UNREACHABLE
    ),
}


@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
def test_a_policy_may_let_a_pod_wait(case: Case) -> None:
    outcome = review(case.pod, WAITING, nodes=cluster(*case.objects)).outcome
    assert (outcome.reason if isinstance(outcome, KeepRequest) else None) is case.reason


class Change(NamedTuple):
    before: tuple[Json, ...]
    after: tuple[Json, ...]


SAME = (make_volume("v", zones=("b",)), make_class(mode=LATER))
CHANGES = {
    "the claim is created": Change(SAME, (*SAME, make_claim("data", volume="v"))),
    "the claim is bound": Change((*SAME, make_claim("data")), (*SAME, make_claim("data", volume="v"))),
    "another pod ends": Change(
        (*SAME, make_claim("data", volume="v", modes=("ReadWriteOncePod",)), OTHER.build()),
        (*SAME, make_claim("data", volume="v", modes=("ReadWriteOncePod",))),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_cached_decision_ends_when_its_volumes_change(change: Change, backwards: bool) -> None:
    cache, policies = DecisionCache(), policies_of(policy(SIZING))
    views = [view_of(*cluster(*objects)) for objects in (reversed(change) if backwards else change)]
    views[1].fleet = views[0].fleet  # only the objects about storage differ
    for view in (*views, views[0]):
        request, later = request_of(ONE.build()), NOW + timedelta(seconds=1)
        expected = decide(request, policies, view, NO_USAGE, later)
        assert cache.decide(request, policies, view, NO_USAGE, later) == expected
    assert type(decide(request_of(ONE.build()), policies, views[0], NO_USAGE, NOW).outcome) is not type(
        decide(request_of(ONE.build()), policies, views[1], NO_USAGE, NOW).outcome
    )


def stateful_set(claim: Json) -> Json:
    """Return a StatefulSet whose pods get a claim each."""
    pod = small().build()
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    spec = {"replicas": 2, "template": template, "volumeClaimTemplates": [claim]}
    metadata = {"name": "web", "namespace": "team"}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


DATA = make_claim("data")
FORECASTS: dict[str, tuple[tuple[Json, ...], KeepReason | None]] = {
    "the claims are new, so that no webhook sees them in time": ((make_class(),), KeepReason.VOLUME_UNKNOWN),
    "nothing is known about claims": ((), KeepReason.VOLUME_UNKNOWN),
    "the claim of an earlier pod is where the slices are": (
        (make_claim("data-web-0", volume="v"), make_volume("v", zones=("b",))),
        None,
    ),
    "the claim of an earlier pod is where no slice is": (
        (make_claim("data-web-0", volume="v"), make_volume("v", zones=("a",))),
        KeepReason.VOLUME_UNREACHABLE,
    ),
}


@pytest.mark.parametrize(("objects", "reason"), FORECASTS.values(), ids=FORECASTS)
def test_the_forecast_for_a_stateful_set_is_what_its_first_pod_gets(
    objects: tuple[Json, ...], reason: KeepReason | None
) -> None:
    forecast = review(stateful_set(DATA), SIZING, nodes=cluster(*objects)).outcome
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
    pod = small(claim_volume("data-web-0")).build()
    pod["metadata"] |= {"name": "web-0", "ownerReferences": [owner]}
    actual = review(pod, SIZING, nodes=cluster(*objects)).outcome

    assert forecast == actual
    missing = reason is KeepReason.VOLUME_UNKNOWN and bool(objects)
    assert ("its StatefulSet creates it just before the pod" in getattr(forecast, "detail", "")) is missing
    assert (None if isinstance(forecast, OfferChoice) else forecast.reason) is reason
