"""The webhook does no harm: a pod whose host ports are in use on every node with slices runs on a card."""

from __future__ import annotations

import secrets
from functools import partial

from tests.builders import PodMaker
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import with_bypass_label
from tests.cluster.no_harm.scheduling_trials import (
    CARD_NODES,
    SLICE,
    SLICE_NODES,
    BurstResult,
    burst_pod,
    namespace_for_bursts,
    run_burst,
    trial_nodes,
)
from tests.cluster.polling import eventually
from webhook.server.admission_state import ASSUME_TTL_SECONDS

TAKERS_SECONDS = 2 * ASSUME_TTL_SECONDS
"""Pods of earlier tests that requested slices themselves leave units unassigned for a while."""


def web_pod(name: str, namespace: str) -> PodMaker:
    """Return a pod that holds a host port."""
    return burst_pod(name, namespace).container("web", ports=[{"containerPort": 80, "hostPort": 8080}])


def test_a_pod_whose_host_port_is_in_use_on_all_slices_runs_on_a_card(sizing: Installation) -> None:
    plane = sizing.plane
    team = namespace_for_bursts(plane, f"ports-{secrets.token_hex(3)}")
    makers = [web_pod(f"held-{number}", team).requests(SLICE, "4") for number in range(SLICE_NODES)]
    running = [with_bypass_label(maker.build()) for maker in makers]  # so none of them counts as just admitted
    with_port = web_pod("with-port", team).gpus(1).needs("8Gi").build()
    without = burst_pod("without", team).gpus(1).needs("8Gi").build()
    try:
        with trial_nodes(plane):
            assert run_burst(plane, [with_port], running) == BurstResult(pods=1)
            right_sized = partial(eventually, until=BurstResult(pods=1, right_sized=1).__eq__, within=TAKERS_SECONDS)
            right_sized(lambda: run_burst(plane, [without], running))
            right_sized(lambda: run_burst(plane, [with_port], running[:2]))
    finally:
        plane.api.delete(f"/api/v1/namespaces/{team}")


def test_of_a_burst_of_pods_with_one_host_port_every_pod_gets_a_node(sizing: Installation) -> None:
    plane = sizing.plane
    team = namespace_for_bursts(plane, f"ports-{secrets.token_hex(3)}")
    pods = [web_pod(f"b-{number}", team).gpus(1).needs("8Gi").build() for number in range(CARD_NODES)]
    try:
        with trial_nodes(plane):
            result = run_burst(plane, pods, [])
            assert (result.pods, result.pending, result.harmed) == (CARD_NODES, 0, ())
    finally:
        plane.api.delete(f"/api/v1/namespaces/{team}")
