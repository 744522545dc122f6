"""Replicas of an earlier version and of this one behind one Service: an upgrade and a rollback lose no create."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import yaml

from tests.cluster.client import Json
from tests.cluster.end_to_end.conftest import OPTED_IN
from tests.cluster.end_to_end.test_outages import DECISION, unscheduled_pod
from tests.cluster.end_to_end.test_pods import GPU, SLICE, container_requests
from tests.cluster.installation import Installation, install_from_page
from tests.cluster.no_harm import test_shared_quota_race as quota_race
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CreateResult, create_pods
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.replicas import Replicas, serve_replicas
from tests.conftest import ROOT
from tests.policy.policy_texts import policy_text
from tests.upgrade.earlier_version import export_earlier
from webhook.installing.apply import TLS_SECRET_PATH

RATE = 20
MAX_PODS = 6000
"""Of five minutes: two replicas start, and two wait until the API server has closed their connections."""

AMPLE = 80_000_000
"""Thousandths of a GPU: more than all pods request, so that replicas only share the quota."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the earlier version."""
    return export_earlier(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def site(plane: Plane, earlier: Path, tmp_path: Path) -> Iterator[Installation]:
    """An installation of the earlier version: its definitions, webhooks and server."""
    nodes = add_nodes(plane, demo_nodes())
    try:
        with install_from_page(plane, tmp_path, checkout=earlier) as installation:
            yield installation
    finally:
        remove_nodes(plane, nodes)


@pytest.fixture
def team(plane: Plane, site: Installation) -> Iterator[str]:
    """A namespace whose pods are right-sized."""
    name = plane.add_namespace(f"mixed-{site.port}", OPTED_IN)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


def run_version(checkout: Path, *arguments: str) -> str:
    """Return what Python of a version prints."""
    command = ["env", f"--chdir={checkout}", f"PYTHONPATH={checkout}", sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    return done.stdout


def requests_before(plane: Plane, checkout: Path, pod: str) -> Json:
    """Return what a pod requested before it was changed, as `undo` of a version prints it."""
    printed = run_version(checkout, "-m", "webhook.cli", "undo", pod, f"--kubeconfig={plane.kubeconfig}")
    return container_requests(yaml.safe_load(printed))


def create_quota(plane: Plane, team: str, milli: int) -> None:
    """Create the policy of a shared quota of a namespace."""
    match = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team}}}
    quotas = {"shared": [{"name": "lab", "gpuMilli": milli}]}
    plane.api.create(quota_race.POLICIES, json.loads(policy_text("lab", mode="enforce", match=match, quotas=quotas)))


def create_sized(plane: Plane, team: str, name: str) -> None:
    """Create a pod that is right-sized; kubectl repeats it while replicas share a new quota."""
    pod = unscheduled_pod(name, team).needs("8Gi").gpus(1).build()
    created = plane.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(pod))
    assert GPU not in container_requests(json.loads(created.stdout))


@contextmanager
def creates_running(plane: Plane, team: str, prefix: str) -> Iterator[list[CreateResult]]:
    """Create pods within the block; afterwards the list has their answers."""
    done, answers = threading.Event(), list[CreateResult]()

    def pods() -> Iterator[Json]:
        for index in range(MAX_PODS):
            if done.is_set():
                return
            yield unscheduled_pod(f"{prefix}-{index}", team).requests(SLICE, "1").build()

    creation = threading.Thread(target=lambda: answers.extend(create_pods(plane, pods(), rate=RATE, retries=10)))
    creation.start()
    try:
        yield answers
    finally:
        done.set()
        creation.join()


def change_version(site: Installation, replicas: Replicas, checkout: Path) -> None:
    """Apply the manifests of a version, and replace the replicas one by one, as a Deployment does."""
    site.checkout = checkout
    site.apply_manifests()
    for _ in range(len(replicas.running)):
        replicas.add()
        replicas.remove_oldest()
    eventually(site.webhooks_answer)


def stored_state(plane: Plane) -> tuple[Json, Json]:
    """Return the certificates, and the policy of the quota."""
    return plane.api.get(TLS_SECRET_PATH)["data"], plane.api.get(f"{quota_race.POLICIES}/lab")["spec"]


def test_an_upgrade_and_a_rollback_lose_no_create(site: Installation, earlier: Path, team: str) -> None:
    plane = site.plane
    assert run_version(earlier, "-c", "import webhook; print(webhook.__file__)").startswith(str(earlier))
    create_quota(plane, team, milli=AMPLE)
    with serve_replicas(site, 2) as replicas:
        create_sized(plane, team, "sized-before")
        before = stored_state(plane)
        with creates_running(plane, team, "upgrade") as upgraded:
            change_version(site, replicas, ROOT)
        create_sized(plane, team, "sized-after")
        between = stored_state(plane)
        with creates_running(plane, team, "rollback") as rolled_back:
            change_version(site, replicas, earlier)

        assert [answer for answer in (*upgraded, *rolled_back) if not answer.created] == []
        assert before == between == stored_state(plane)
    pods = plane.api.get(f"/api/v1/namespaces/{team}/pods")["items"]
    assert len(pods) == len(upgraded) + len(rolled_back) + 2
    assert [pod["metadata"]["name"] for pod in pods if DECISION not in pod["metadata"].get("annotations", {})] == []
    for checkout in (earlier, ROOT):
        for name in ("sized-before", "sized-after"):
            assert requests_before(plane, checkout, f"{team}/{name}") == {GPU: "1"}


def test_replicas_of_both_versions_never_exceed_a_shared_quota(site: Installation, team: str) -> None:
    plane, random = site.plane, Random(team)
    create_quota(plane, team, milli=quota_race.CEILING)
    with quota_race.webhooks_that_fail_closed(plane), serve_replicas(site, 1) as replicas:
        site.checkout = ROOT
        replicas.add()
        since = plane.api.get(f"/api/v1/namespaces/{team}/pods")["metadata"]["resourceVersion"]
        pods = quota_race.gpu_pods(team, random, "race", quota_race.CREATES)
        pods += [unscheduled_pod(f"last-{number}", team).gpus(1).build() for number in range(8)]
        answers = create_pods(plane, pods, clients=quota_race.CLIENTS, retries=90)
        eventually(lambda: quota_race.used_milli(plane, team), until=lambda used: used == quota_race.CEILING)

        assert quota_race.peak_milli(plane, team, since) == quota_race.CEILING
    assert any(each.status == 403 and "exceeded quota: lab" in each.message for each in answers)
