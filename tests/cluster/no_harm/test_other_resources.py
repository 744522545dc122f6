"""Pods with disk, huge pages and extended resources get slices only where the real scheduler has a node for them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.builders import Json, make_node
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import GPU, RIGHT_SIZED, SLICES
from tests.cluster.no_harm.scheduling_trials import TRIAL, burst_pod, run_burst, trial_nodes
from tests.cluster.polling import eventually
from tests.example_cluster import A100, MIXED
from webhook.server.admission_state import ASSUME_TTL_SECONDS

DISK, PAGES, RDMA = "ephemeral-storage", "hugepages-2Mi", "rdma/hca"


def node_with(node: Json, **amounts: str) -> Json:
    """Return a node that advertises further resources."""
    more = {name.replace("_", "-"): amount for name, amount in amounts.items()}
    for side in ("allocatable", "capacity"):
        node["status"][side] |= {RDMA if name == "rdma" else name: amount for name, amount in more.items()}
    return node


NODES = [
    node_with(make_node("other-slices", MIXED | TRIAL, **{SLICES[0]: 7}), ephemeral_storage="100Gi"),
    node_with(
        make_node("other-cards", A100 | TRIAL, **{GPU: 8}), ephemeral_storage="1Ti", hugepages_2Mi="1Gi", rdma="8"
    ),
]


@pytest.fixture
def site(sizing: Installation) -> Iterator[Installation]:
    """The installation, with one node of slices and one of cards."""
    with trial_nodes(sizing.plane, NODES):
        yield sizing


def test_pods_get_slices_only_where_their_other_resources_are_free(site: Installation) -> None:
    team = site.plane.add_namespace(f"others-{secrets.token_hex(3)}", RIGHT_SIZED)
    on_disk = [
        burst_pod(f"disk-{number}", team).gpus(1).needs("8Gi").requests(DISK, "30Gi").build() for number in range(5)
    ]
    elsewhere = [
        burst_pod("pages", team).gpus(1).needs("8Gi").requests(PAGES, "4Mi").requests("memory", "1Gi").build(),
        burst_pod("rdma", team).gpus(1).needs("8Gi").requests(RDMA, "1").build(),
    ]
    try:
        disk = eventually(
            lambda: run_burst(site.plane, on_disk, (), clients=1),
            until=lambda result: (
                result.right_sized or result.harmed
            ),  # pods of earlier tests may leave none for a while
            within=2 * ASSUME_TTL_SECONDS,
        )
        others = run_burst(site.plane, elsewhere, (), clients=1)
    finally:
        site.plane.api.delete(f"/api/v1/namespaces/{team}")

    assert (disk.pending, disk.harmed) == (0, ())
    assert 1 <= disk.right_sized <= 3, "100Gi hold three"
    assert (others.pending, others.right_sized) == (0, 0), "the slices' node has neither"
