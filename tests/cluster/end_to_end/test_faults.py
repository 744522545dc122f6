"""Faults of replicas and of the cluster: killed and suspended processes, stops and starts, many clients."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.builders import PodMaker
from tests.cluster.client import Json, RefusedError
from tests.cluster.end_to_end.test_outages import assert_keeps_working, is_fully_working, unscheduled_pod
from tests.cluster.end_to_end.test_pods import GPU, SLICE
from tests.cluster.installation import Installation, webhook_timeout
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from tests.cluster.replicas import two_replicas
from webhook.well_known import SYSTEM_NAMESPACE

RESTARTS = int(os.environ.get("RIGHTSLICE_RESTARTS", "1"))
CLIENTS, CREATES = map(int, os.environ.get("RIGHTSLICE_CREATES", "64x1000").split("x"))
RECOVERY_SECONDS = 30
REJECTIONS = r"http_rejections_total\{[^}]*\}"
TIMEOUT_SECONDS = 5
"""Of each of the two webhooks, where a test waits for it."""

SAFE = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted(pod: PodMaker) -> PodMaker:
    """Return a pod that Pod Security admits everywhere."""
    pod.main["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return pod.spec(securityContext=SAFE)


def create_dry(plane: Plane, pod: PodMaker) -> Json:
    data = pod.build()
    return plane.api.create(f"/api/v1/namespaces/{data['metadata']['namespace']}/pods", data, dryRun="All")


def test_with_every_replica_killed_system_pods_start_and_a_restart_is_enough(site: Installation, team: str) -> None:
    site.replica.kill()
    try:
        for namespace in ("kube-system", SYSTEM_NAMESPACE):
            create_dry(site.plane, restricted(unscheduled_pod("agent", namespace)).requests(GPU, "1"))
        create_dry(site.plane, unscheduled_pod("plain", team))
        with pytest.raises(RefusedError, match="failed calling webhook"):
            create_dry(site.plane, unscheduled_pod("gpu", team).requests(GPU, "1"))
    finally:
        site.replica.launch()

    eventually(lambda: is_fully_working(site, team))
    site.replica.wait()


def test_a_stopped_and_started_cluster_recovers_alone(site: Installation, team: str, plane_to_disrupt: Plane) -> None:
    """Our server starts first, as a static pod or on a node that is faster than the control plane."""
    for _ in range(RESTARTS):
        site.replica.kill()
        for process in reversed(plane_to_disrupt.processes):
            process.kill()
        site.replica.launch()
        plane_to_disrupt.restore()
        site.replica.wait()
        eventually(lambda: is_fully_working(site, team))

    assert_keeps_working(site, team)


def slices(team: str, count: int, name: str = "slice") -> list[Json]:
    return [unscheduled_pod(f"{name}-{index}", team).requests(SLICE, "1").build() for index in range(count)]


def test_a_suspended_replica_delays_calls_by_their_timeout_until_it_is_no_endpoint(
    site: Installation, team: str
) -> None:
    with webhook_timeout(site.plane, TIMEOUT_SECONDS), two_replicas(site) as replicas:
        port, suspended = replicas.running[0]
        suspended.send(signal.SIGSTOP)
        try:
            meanwhile = create_pods(site.plane, slices(team, 16))
            replicas.proxy.backends = [other for other, _ in replicas.running if other != port]
            eventually(lambda: is_fully_working(site, team))
            afterwards = create_pods(site.plane, slices(team, 50, "later"))
        finally:
            suspended.send(signal.SIGCONT)

    assert max(each.seconds for each in meanwhile) < 2 * TIMEOUT_SECONDS + RECOVERY_SECONDS
    assert all(each.created or "failed calling webhook" in each.message for each in meanwhile)
    assert [each for each in afterwards if not each.created] == []


def test_a_suspended_etcd_fails_no_call_of_a_webhook(site: Installation, team: str, plane_to_disrupt: Plane) -> None:
    def suspend(count: int) -> None:
        if count == 10:
            plane_to_disrupt.etcd.send(signal.SIGSTOP)
            threading.Timer(2.0, plane_to_disrupt.etcd.send, [signal.SIGCONT]).start()

    answers = create_pods(site.plane, slices(team, 60), rate=20, on_answer=suspend)

    assert max(each.seconds for each in answers) > 1, "etcd was suspended"
    assert [each for each in answers if not each.created] == []


def stored_version(plane: Plane) -> int:
    """Return the number of writes that etcd has had."""
    return int(plane.api.get("/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"])


def test_many_clients_create_pods_without_a_failure_or_a_further_write(site: Installation, team: str) -> None:
    """Others write too, such as leases: far less than one write per pod is left for them."""
    before, rejections = stored_version(site.plane), site.metric_values(REJECTIONS)
    answers = create_pods(site.plane, slices(team, CREATES), clients=CLIENTS)
    written = stored_version(site.plane) - before

    assert site.metric_values(REJECTIONS) == rejections
    assert [each for each in answers if not each.created] == []
    assert CREATES <= written < 1.5 * CREATES
    for kind in ("events", "configmaps"):
        stored = site.plane.api.get(f"/api/v1/namespaces/{team}/{kind}")["items"]
        assert len(stored) <= 1, "the bundle of the API server's authority"
