"""Outages of the server, etcd and the API server: failures follow failurePolicy, and everything recovers."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.end_to_end.test_pods import CARD, SLICE, TAINT, container_requests, notebook
from tests.cluster.installation import Installation
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CreateResult, create_pods
from tests.cluster.polling import eventually
from tests.conftest import ROOT

CREATES = 2000
DECISION = "rightslice.dev/decision"


def unscheduled_pod(name: str, team: str) -> PodMaker:
    """A pod that no scheduler takes: it costs no more than its create."""
    return make_pod(name).namespace(team).spec(schedulerName="nobody")


def mixed_pods(team: str) -> list[Json]:
    """Mostly pods without GPUs; slices, which are allowed; privileged pods and hosts' roots, which are not."""
    pods = []
    for index in range(CREATES):
        if index % 5:
            pod = unscheduled_pod(f"plain-{index}", team)
        elif index % 100 == 0:
            pod = unscheduled_pod(f"host-{index}", team).spec(volumes=[{"name": "root", "hostPath": {"path": "/"}}])
        elif index % 50 == 5:
            pod = unscheduled_pod(f"mighty-{index}", team).asks(SLICE, "1")
            pod.main["securityContext"] = {"privileged": True}
        else:
            pod = unscheduled_pod(f"slice-{index}", team).asks(SLICE, "1")
        pods.append(pod.build())
    return pods


def of(kind: str, answers: list[CreateResult]) -> list[CreateResult]:
    """The answers about pods of a kind."""
    found = [answer for answer in answers if answer.name.startswith(kind)]
    assert found
    return found


def audit(plane: Plane, team: str) -> set[str]:
    """The pods of a namespace that an audit would change or refuse."""
    flags = ["--cluster=live", f"--kubeconfig={plane.kubeconfig}", "--policies=policies", "-o", "json"]
    command = [sys.executable, "-m", "webhook.cli", "audit", *flags, "--fail-on=never"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    objects = [one for one in json.loads(ran.stdout)["objects"] if one["namespace"] == team]
    return {one["name"] for one in objects if one["verdict"] == "denied" or one["patch"]}


def test_a_killed_server_follows_its_failure_policy_and_an_audit_lists_unevaluated_pods(
    site: Installation, team: str
) -> None:
    def trouble(count: int) -> None:
        if count == CREATES // 4:
            site.replica.kill()
        elif count == CREATES // 2:
            site.replica.launch()

    answers = create_pods(site.plane, mixed_pods(team), rate=200, answered=trouble)
    site.replica.wait()

    assert [answer for answer in of("plain", answers) if not answer.created] == []
    slices, mighty, hosts = (of(kind, answers) for kind in ("slice", "mighty", "host"))
    held_up = [answer for answer in slices if not answer.created]
    assert held_up
    assert all('failed calling webhook "validate.rightslice.dev"' in answer.message for answer in held_up)
    assert slices[0].created
    assert [answer for answer in mighty if answer.created] == []
    assert {answer.created for answer in hosts} == {True, False}, "refused, but while nobody answered"

    stored = {pod["metadata"]["name"]: pod for pod in site.plane.api.get(f"/api/v1/namespaces/{team}/pods")["items"]}
    assert stored.keys() == {answer.name for answer in answers if answer.created}
    unseen = set()
    for answer in filter(lambda each: each.created, slices):
        pod = stored[answer.name]
        if DECISION not in pod["metadata"].get("annotations", {}):
            unseen.add(answer.name)
        assert (TAINT in pod["spec"]["tolerations"]) == (answer.name not in unseen), "nothing is half written"
        assert container_requests(pod) == {SLICE: "1"}
    assert audit(site.plane, team) == unseen | {answer.name for answer in hosts if answer.created}

    path = f"/api/v1/namespaces/{team}/pods"
    again = notebook("after", team)
    eventually(lambda: container_requests(site.plane.api.create(path, again, dryRun="All")) == {SLICE: "1"}, within=90)


def is_fully_working(site: Installation, team: str) -> bool:
    """Pods are shaped, and a change of the cluster is seen."""
    path = f"/api/v1/namespaces/{team}/pods"
    try:
        return container_requests(site.plane.api.create(path, notebook("try", team), dryRun="All")) == {SLICE: "1"}
    except RefusedError:
        return False


def opted_out(site: Installation, team: str) -> bool:
    """Is the namespace known not to want slices any more?"""
    path = f"/api/v1/namespaces/{team}/pods"
    return container_requests(site.plane.api.create(path, notebook("try", team), dryRun="All")) == {CARD: "1"}


def keeps_working(site: Installation, team: str) -> None:
    """It works with what it knew, and hears what is new."""
    eventually(lambda: is_fully_working(site, team), within=60)
    site.plane.api.patch(f"/api/v1/namespaces/{team}", {"metadata": {"labels": {"rightslice.dev/right-sizing": None}}})
    eventually(lambda: opted_out(site, team))
    assert site.fetch_page("/readyz") is not None
    assert site.replica.running


def test_the_webhook_recovers_after_an_etcd_outage(site: Installation, team: str, plane_to_trouble: Plane) -> None:
    plane_to_trouble.etcd.stop()
    assert site.fetch_page("/readyz")
    plane_to_trouble.etcd.start()

    keeps_working(site, team)


def test_the_webhook_recovers_after_an_api_server_restart(
    site: Installation, team: str, plane_to_trouble: Plane
) -> None:
    plane_to_trouble.apiserver.restart()

    keeps_working(site, team)
