"""The webhook does no harm: no pod stays pending only because of the form that the webhook gave it.

`RIGHTSLICE_BURSTS=24` runs as many bursts of 60 pods, and as many trials of one slice.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from random import Random

import pytest

from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import GPU
from tests.cluster.no_harm.scheduling_trials import (
    SETTLED_SECONDS,
    SLICE,
    BurstResult,
    burst_pod,
    fillers,
    namespace_for_bursts,
    random_burst,
    random_tied_burst,
    run_burst,
    trial_nodes,
)
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.replicas import two_replicas

BURSTS = int(os.environ.get("RIGHTSLICE_BURSTS", "4"))
PODS = 60
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "bursts")


@pytest.fixture(scope="module")
def burst_site(sizing: Installation) -> Iterator[Installation]:
    """The installation, with the nodes of the trials."""
    with trial_nodes(sizing.plane):
        yield sizing


@pytest.fixture
def team(burst_site: Installation) -> Iterator[str]:
    """A namespace in which pods are right-sized."""
    name = namespace_for_bursts(burst_site.plane, f"bursts-{secrets.token_hex(3)}")
    yield name
    burst_site.plane.api.delete(f"/api/v1/namespaces/{name}")


def run_bursts(plane: Plane, team: str, bursts: int) -> BurstResult:
    """Run bursts; in every second one, most pods are tied to others."""
    random, total = Random(SEED), BurstResult()
    for number in range(bursts):
        free = random.randrange(36), random.randrange(PODS // 2, 65)
        pods = (random_burst, random_tied_burst)[number % 2](random, team, PODS)
        total = total.plus(run_burst(plane, pods, fillers(team, *free)))
    return total


def test_no_pod_of_a_burst_stays_pending_in_its_new_form(burst_site: Installation, team: str) -> None:
    total = run_bursts(burst_site.plane, team, BURSTS)

    assert total.harmed == ()
    assert total.right_sized > total.pods / 20, total


def limit_slices(plane: Plane, team: str, slices: int) -> None:
    """Add a quota of slices to a namespace, and wait until it is counted."""
    path = f"/api/v1/namespaces/{team}/resourcequotas"
    quota = {"metadata": {"name": "slices"}, "spec": {"hard": {f"requests.{SLICE}": slices, f"requests.{GPU}": 100}}}
    plane.api.create(path, {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    eventually(lambda: plane.api.get(f"{path}/slices"), until=lambda found: "used" in found.get("status", {}))
    time.sleep(SETTLED_SECONDS)


@pytest.mark.parametrize("clients", [1, 8])
def test_a_quota_of_slices_refuses_no_pod_of_a_burst(burst_site: Installation, team: str, clients: int) -> None:
    limit_slices(burst_site.plane, team, 9)
    total = BurstResult()
    for _ in range(BURSTS):
        pods = [burst_pod(f"small-{number}", team).gpus(1).needs("8Gi").build() for number in range(16)]
        total = total.plus(run_burst(burst_site.plane, pods, (), clients))

    assert total.right_sized > BURSTS * 4, total


def test_two_small_pods_and_one_direct_taker_race_for_one_slice(burst_site: Installation, team: str) -> None:
    total, random = BurstResult(), Random(SEED)
    for _ in range(BURSTS):
        pods = [burst_pod(f"small-{number}", team).gpus(1).needs("8Gi").build() for number in range(2)]
        pods.append(burst_pod("taker", team).requests(SLICE, "1").build())
        random.shuffle(pods)
        total = total.plus(run_burst(burst_site.plane, pods, fillers(team, random.choice((1, 2, 3)), 4), clients=3))
    assert total.harmed == ()


def test_no_pod_of_a_burst_over_two_replicas_stays_pending(burst_site: Installation, team: str) -> None:
    with two_replicas(burst_site):
        total = run_bursts(burst_site.plane, team, BURSTS)

    assert total.harmed == ()
    assert total.right_sized > total.pods / 40, total
