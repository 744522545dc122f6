"""Outages of the server, etcd and the API server: failures follow failurePolicy, and everything recovers."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.end_to_end.test_pods import GPU, SLICE, TAINT, container_requests, notebook
from tests.cluster.installation import Installation
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CreateResult, create_pods
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.conftest import ROOT

CREATES = 2000
DECISION = "rightslice.dev/decision"


def unscheduled_pod(name: str, team: str) -> PodMaker:
    """Return a pod that no scheduler handles, so that it costs no more than its create."""
    return make_pod(name).namespace(team).spec(schedulerName="no-scheduler")


def mixed_pods(team: str) -> list[Json]:
    """Return mostly pods without GPUs, some with slices, which are allowed, and some that are privileged or mount the
    host's root, which are not."""
    pods = []
    for index in range(CREATES):
        if index % 5:
            pod = unscheduled_pod(f"plain-{index}", team)
        elif index % 100 == 0:
            pod = unscheduled_pod(f"host-{index}", team).spec(volumes=[{"name": "root", "hostPath": {"path": "/"}}])
        elif index % 50 == 5:
            pod = unscheduled_pod(f"privileged-{index}", team).requests(SLICE, "1")
            pod.main["securityContext"] = {"privileged": True}
        else:
            pod = unscheduled_pod(f"slice-{index}", team).requests(SLICE, "1")
        pods.append(pod.build())
    return pods


def answers_for(kind: str, answers: list[CreateResult]) -> list[CreateResult]:
    """Return the answers for pods whose names have this prefix."""
    found = [answer for answer in answers if answer.name.startswith(kind)]
    assert found
    return found


def audit(plane: Plane, team: str) -> set[str]:
    """Return the pods of a namespace that an audit would change or reject."""
    flags = ["--cluster=live", f"--kubeconfig={plane.kubeconfig}", "--policies=policies", "-o", "json"]
    command = [sys.executable, "-m", "webhook.cli", "audit", *flags, "--fail-on=never"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True, cwd=ROOT)
    objects = [item for item in json.loads(ran.stdout)["objects"] if item["namespace"] == team]
    return {item["name"] for item in objects if item["verdict"] == "denied" or item["patch"]}


def test_a_killed_server_follows_its_failure_policy_and_an_audit_lists_unevaluated_pods(
    site: Installation, team: str
) -> None:
    def disrupt(count: int) -> None:
        if count == CREATES // 4:
            site.replica.kill()
        elif count == CREATES // 2:
            site.replica.launch()

    answers = create_pods(site.plane, mixed_pods(team), rate=200, on_answer=disrupt)
    site.replica.wait()

    assert [answer for answer in answers_for("plain", answers) if not answer.created] == []
    slices, privileged, hosts = (answers_for(kind, answers) for kind in ("slice", "privileged", "host"))
    not_created = [answer for answer in slices if not answer.created]
    assert not_created
    assert all('failed calling webhook "validate.rightslice.dev"' in answer.message for answer in not_created)
    assert slices[0].created
    assert [answer for answer in privileged if answer.created] == []
    assert {answer.created for answer in hosts} == {True, False}, "rejected, except while the server was down"

    stored = {pod["metadata"]["name"]: pod for pod in site.plane.api.get(f"/api/v1/namespaces/{team}/pods")["items"]}
    assert stored.keys() == {answer.name for answer in answers if answer.created}
    unevaluated = set()
    for answer in filter(lambda each: each.created, slices):
        pod = stored[answer.name]
        if DECISION not in pod["metadata"].get("annotations", {}):
            unevaluated.add(answer.name)
        assert (TAINT in pod["spec"]["tolerations"]) == (answer.name not in unevaluated), (
            "a patch is complete or absent"
        )
        assert container_requests(pod) == {SLICE: "1"}
    assert audit(site.plane, team) == unevaluated | {answer.name for answer in hosts if answer.created}

    path = f"/api/v1/namespaces/{team}/pods"
    site.plane.api.delete(path, gracePeriodSeconds="0")  # while they wait for a node, they count for every free slice
    later_pod = notebook("after", team)
    eventually(lambda: container_requests(site.plane.api.create(path, later_pod, dryRun="All")) == {SLICE: "1"})


def is_fully_working(site: Installation, team: str) -> bool:
    """Return whether a pod is right-sized."""
    path = f"/api/v1/namespaces/{team}/pods"
    try:
        return container_requests(site.plane.api.create(path, notebook("try", team), dryRun="All")) == {SLICE: "1"}
    except RefusedError:
        return False


def opted_out(site: Installation, team: str) -> bool:
    """Return whether the webhook knows that the namespace no longer opts in."""
    path = f"/api/v1/namespaces/{team}/pods"
    return container_requests(site.plane.api.create(path, notebook("try", team), dryRun="All")) == {GPU: "1"}


def assert_keeps_working(site: Installation, team: str) -> None:
    """Assert that pods are right-sized with the earlier state, and that later changes take effect."""
    eventually(lambda: is_fully_working(site, team))
    site.plane.api.patch(f"/api/v1/namespaces/{team}", {"metadata": {"labels": {"rightslice.dev/right-sizing": None}}})
    eventually(lambda: opted_out(site, team))
    assert site.fetch_page("/readyz") is not None
    assert site.replica.running


def test_the_webhook_recovers_after_an_etcd_outage(site: Installation, team: str, plane_to_disrupt: Plane) -> None:
    plane_to_disrupt.etcd.stop()
    assert site.fetch_page("/readyz")
    plane_to_disrupt.etcd.start()

    assert_keeps_working(site, team)


def test_the_webhook_recovers_after_an_api_server_restart(
    site: Installation, team: str, plane_to_disrupt: Plane
) -> None:
    plane_to_disrupt.apiserver.restart()

    assert_keeps_working(site, team)
