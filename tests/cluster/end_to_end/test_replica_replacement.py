"""Two replicas behind a TCP proxy are replaced one after the other while pods are created: no create fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.cluster.end_to_end.test_outages import DECISION, unscheduled_pod
from tests.cluster.end_to_end.test_pods import SLICE
from tests.cluster.installation import Installation
from tests.cluster.pod_creation import create_pods
from tests.cluster.replicas import Replicas, two_replicas

RATE = 50
MAX_PODS = 6000
"""Of two minutes: a replica may wait for 95 s until the API server has closed its connections."""


@pytest.fixture
def replicas(site: Installation) -> Iterator[Replicas]:
    """Two replicas instead of the one server."""
    with two_replicas(site) as running:
        yield running


def test_replicas_are_replaced_without_a_failed_create(site: Installation, team: str, replicas: Replicas) -> None:
    def replace_replicas() -> None:
        for _ in range(2):
            replicas.add()
            replicas.remove_oldest()
        replicas.wait_for_removed()

    replacement = threading.Thread(target=replace_replicas)

    def start_replacement(count: int) -> None:
        if count == RATE:
            replacement.start()

    def pods() -> Iterator[dict[str, object]]:
        """Yield pods until both replicas are replaced, and for one more second."""
        later_pods = 0
        for index in range(MAX_PODS):
            later_pods += index > RATE and not replacement.is_alive()
            if later_pods > RATE:
                return
            yield unscheduled_pod(f"slice-{index}", team).requests(SLICE, "1").build()

    answers = create_pods(site.plane, pods(), rate=RATE, on_answer=start_replacement)
    replacement.join()

    assert len(replicas.all) == 4
    assert [server.running for server in replicas.all] == [False, False, True, True]
    assert [answer for answer in answers if not answer.created] == []
    stored = site.plane.api.get(f"/api/v1/namespaces/{team}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in stored if DECISION not in pod["metadata"].get("annotations", {})] == []
