"""The webhook does no harm: a pod that running pods exclude from every slice runs on a card."""

from __future__ import annotations

import secrets

from tests.builders import Json
from tests.cluster.installation import Installation
from tests.cluster.no_harm.scheduling_trials import (
    REQUIRED,
    SLICE,
    SLICE_NODES,
    BurstResult,
    burst_pod,
    namespace_for_bursts,
    run_burst,
    trial_nodes,
)


def quiet_pod(name: str, namespace: str, slices: int) -> Json:
    """Return a pod with slices whose anti-affinity keeps noisy pods from its node."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"noisy": "yes"}}}
    affinity = {"podAntiAffinity": {REQUIRED: [term]}}
    return burst_pod(name, namespace).requests(SLICE, str(slices)).spec(affinity=affinity).build()


def test_a_pod_that_running_pods_exclude_from_all_slices_runs_on_a_card(sizing: Installation) -> None:
    plane = sizing.plane
    team = namespace_for_bursts(plane, f"quiet-{secrets.token_hex(3)}")
    running = [quiet_pod(f"quiet-{number}", team, 4) for number in range(SLICE_NODES)]
    noisy = burst_pod("noisy", team).gpus(1).needs("8Gi").label("noisy", "yes").build()
    silent = burst_pod("silent", team).gpus(1).needs("8Gi").build()
    try:
        with trial_nodes(plane):
            assert run_burst(plane, [noisy], running) == BurstResult(pods=1)
            assert run_burst(plane, [silent], running) == BurstResult(pods=1, right_sized=1)
    finally:
        plane.api.delete(f"/api/v1/namespaces/{team}")
