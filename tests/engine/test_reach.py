"""Reach: of the real pods that an empty slice could run, how many are right-sized; and no other pod ever is."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.decide import manifests
from benchmarks.reach import is_eligible, measure_reach, reach_cluster
from tests.builders import Json, PodMaker, make_pod
from webhook.cache.bundled_files import bundled_folder
from webhook.model.pods import parse_pod

MIN_PERCENT = 100
"""The share that was reached when this test was last changed. The aim is 95."""

ELIGIBLE: dict[str, tuple[PodMaker, bool]] = {
    "one whole GPU": (make_pod().gpus(1), True),
    "with what the fabric's node has": (make_pod().gpus(1).requests("rdma/ib", "1"), True),
    "on a node that has its labels": (make_pod().gpus(1).spec(nodeSelector={"pool": "a"}), True),
    "two GPUs": (make_pod().gpus(2), False),
    "a resource that no node has": (make_pod().gpus(1).requests("example.com/fpga", "1"), False),
    "more disk than any node has": (make_pod().gpus(1).requests("ephemeral-storage", "900Gi"), False),
    "one pod of a DaemonSet": (make_pod().gpus(1).owned_by("DaemonSet", "agents"), False),
    "another product": (make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "Tesla-T4"}), False),
}


@pytest.mark.parametrize("name", ELIGIBLE)
def test_a_pod_is_eligible_where_an_empty_node_could_run_it_on_a_slice(name: str) -> None:
    maker, expected = ELIGIBLE[name]
    pod = parse_pod(maker.build())
    assert is_eligible(pod, *reach_cluster(pod)) is expected


def test_reach_counts_pods_and_the_reasons_of_those_that_keep_their_card() -> None:
    queued = make_pod("queued").gpus(1).label("kueue.x-k8s.io/queue-name", "team")
    found = measure_reach([_pod(make_pod("small").gpus(1)), _pod(make_pod("large").gpus(2)), _pod(queued)])
    assert (found.pods, found.eligible, found.right_sized, found.percent, found.beyond) == (3, 2, 1, 50, ())
    assert [reason.partition(":")[0] for reason in found.kept] == ["QueuedPod"]


def test_every_example_that_is_right_sized_is_eligible() -> None:
    found = measure_reach(manifests(bundled_folder("examples") / "pods"))
    assert found.beyond == ()
    assert found.right_sized > 0


def test_of_the_eligible_pods_of_real_manifests_so_many_are_right_sized(shared: Path) -> None:
    found = measure_reach(manifests(shared / "corpus" / "manifests"))
    assert found.beyond == (), "right-sized, but no node could run it on a slice"
    assert found.percent >= MIN_PERCENT, found.kept
    assert found.right_sized + found.kept.total() == found.eligible


def _pod(maker: PodMaker) -> Json:
    return {"apiVersion": "v1", "kind": "Pod"} | maker.build()
