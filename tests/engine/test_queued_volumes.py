"""Templates in queues whose pods have volume claims: slices are chosen only where all of their pods reach volumes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json
from tests.engine.test_queued_templates import (
    QUEUE,
    QUOTAS,
    TEMPLATES,
    cluster_queue,
    flavor,
    job,
    queues,
    small_pod,
    template,
)
from tests.example_cluster import mig_node, review, whole_node
from tests.storage_builders import (
    ZONE,
    ephemeral_volume,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_volume,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import KeepReason, KeepRequest

LOCAL = "kubernetes.io/no-provisioner"
LIMITED = (make_class(), make_driver(capacity=False), make_csi_node("mig", limit=2), make_csi_node("whole"))


def in_zone(node: Json, zone: str) -> Json:
    """Return a node in a zone."""
    node["metadata"]["labels"][ZONE] = zone
    return node


def cluster(*objects: Json) -> ClusterView:
    """Return whole cards in zone a and slices in zone b, a queue for both, and objects about storage."""
    nodes = (in_zone(whole_node(), "a"), in_zone(mig_node(), "b"), *objects)
    return queues(flavor(), cluster_queue(QUOTAS), nodes=nodes)


def stateful_set(replicas: int = 2, **spec: Json) -> Json:
    """Return a StatefulSet in a queue, whose pods get a claim each."""
    about = {"name": "web", "namespace": "team", "labels": QUEUE}
    pods: Json = {"replicas": replicas, "template": template(small_pod()), "volumeClaimTemplates": [make_claim("data")]}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": about, "spec": pods | spec}


def with_scratch(pods: int) -> Json:
    """Return a Job of some pods, each with a volume that is created for it."""
    return job(small_pod().spec(volumes=[ephemeral_volume("scratch")]), parallelism=pods)


def local_volumes(count: int, node: str = "mig") -> tuple[Json, ...]:
    """Return a class of local volumes, and some of them on a node."""
    names = [f"{node}-{number}" for number in range(count)]
    return make_class(provisioner=LOCAL), *(make_volume(name, nodes=(node,)) for name in names)


def existing(number: int, zone: str) -> tuple[Json, Json]:
    """Return the claim of an earlier pod, bound to a volume in a zone."""
    return make_claim(f"data-web-{number}", volume=f"v{number}"), make_volume(f"v{number}", zones=(zone,))


class Case(NamedTuple):
    """A workload, objects about storage, and why its template keeps its request; None if it is right-sized."""

    workload: Json
    objects: tuple[Json, ...]
    reason: KeepReason | None = None


CASES = {
    "claims that do not exist yet, in any zone": Case(stateful_set(), (make_class(),)),
    "claims that do not exist yet, where the slices are": Case(stateful_set(), (make_class(zones=("b",)),)),
    "claims that do not exist yet, where no slice is": Case(
        stateful_set(), (make_class(zones=("a",)),), KeepReason.NO_FLAVOR_NODES
    ),
    "claims that do not exist yet, of a class that does not wait for a pod": Case(
        stateful_set(), (make_class(mode="Immediate"),), KeepReason.VOLUME_UNBOUND
    ),
    "claims of earlier pods where the slices are": Case(stateful_set(), (*existing(0, "b"), *existing(1, "b"))),
    "the claim of an earlier second pod where no slice is": Case(
        stateful_set(), (make_class(), *existing(0, "b"), *existing(1, "a")), KeepReason.NO_FLAVOR_NODES
    ),
    "the claim of an earlier pod where no slice is, and the first is new": Case(
        stateful_set(), (make_class(), *existing(1, "a")), KeepReason.NO_FLAVOR_NODES
    ),
    "the claim of an earlier pod whose number is not used now": Case(
        stateful_set(ordinals={"start": 5}), (make_class(), *existing(0, "a"))
    ),
    "the claim of an earlier pod, numbered from the first": Case(
        stateful_set(ordinals={"start": 5}), (make_class(), *existing(6, "a")), KeepReason.NO_FLAVOR_NODES
    ),
    "claims of more pods than are looked up": Case(stateful_set(201), (make_class(),), KeepReason.VOLUME_UNKNOWN),
    "the claim of an earlier first pod where the slices are, of more pods than are looked up": Case(
        stateful_set(201), (make_class(), *existing(0, "b")), KeepReason.VOLUME_UNKNOWN
    ),
    "local volumes for all pods": Case(stateful_set(3), local_volumes(9)),
    "local volumes for some of the pods": Case(stateful_set(7), local_volumes(6), KeepReason.NO_FLAVOR_NODES),
    "local volumes for some of the pods, each of which creates its claim": Case(
        with_scratch(7), local_volumes(6), KeepReason.NO_FLAVOR_NODES
    ),
    "volumes of a driver for all pods": Case(with_scratch(1), LIMITED),
    "volumes of a driver for some of the pods": Case(with_scratch(7), LIMITED, KeepReason.NO_FLAVOR_NODES),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_template_is_right_sized_where_all_its_pods_reach_volumes(case: Case) -> None:
    decision = review(case.workload, TEMPLATES, view=cluster(*case.objects))
    outcome = decision.outcome

    assert (outcome.reason if isinstance(outcome, KeepRequest) else None) is case.reason
    assert bool(decision.patch) is (case.reason is None)
