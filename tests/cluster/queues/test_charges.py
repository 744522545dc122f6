"""A real Kueue charges what the stored template requests: a slice for a right-sized one, whatever its pods hold.

Its workloads are Jobs, and JobSets with the real controller of JobSet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.installation import Installation
from tests.cluster.kueue import API, GPU, SLICE, reserved_amounts
from tests.cluster.polling import PATIENCE_SECONDS, eventually
from tests.cluster.queues.jobs import (
    JOBS,
    JOBSETS,
    admitted_amounts,
    create_job,
    limits_of,
    pods_of_job,
    queued_job,
    queued_jobset,
)
from tests.cluster.recording_webhook import register_patching_webhook
from tests.cluster.test_commands import rightslice
from webhook.audit.cluster_reader import KUEUE_CONFIG_FILE

QUEUED_JOBS = int(os.environ.get("RIGHTSLICE_QUEUED_JOBS", "12"))
"""Jobs that go through a full queue, and JobSets."""


def shrink_pod(request: Json) -> list[Json]:
    """Return a patch that gives the pod of a Job a slice."""
    resources = request["object"]["spec"]["containers"][0]["resources"]
    amounts = {name: amount for name, amount in resources["limits"].items() if name != GPU} | {SLICE: "1"}
    path = "/spec/containers/0/resources"
    return [{"op": "replace", "path": path, "value": {"limits": amounts, "requests": amounts}}]


def test_a_right_sized_template_is_charged_as_a_slice_and_its_pods_come_out_as_it_says(
    site: Installation, team: str
) -> None:
    stored = create_job(site.plane, queued_job("small", team))
    assert limits_of(stored["spec"]["template"]) == {SLICE: "1"}

    amounts = eventually(lambda: admitted_amounts(site.plane, team))
    assert amounts == {"small": {"cpu": "1", SLICE: "1"}}
    [pod] = eventually(lambda: pods_of_job(site.plane, team, "small"))
    assert limits_of(pod) == {SLICE: "1"}
    record = stored["spec"]["template"]["metadata"]["annotations"]
    assert {key: pod["metadata"]["annotations"][key] for key in record if "original" in key} == {
        key: record[key] for key in record if "original" in key
    }


def test_an_untouched_template_is_charged_as_a_card_and_its_pods_keep_it(site: Installation, team: str) -> None:
    stored = create_job(site.plane, queued_job("whole", team, **{"rightslice.dev/keep": "true"}))
    assert limits_of(stored["spec"]["template"]) == {GPU: "1"}

    assert eventually(lambda: admitted_amounts(site.plane, team)) == {"whole": {"cpu": "1", GPU: "1"}}
    [pod] = eventually(lambda: pods_of_job(site.plane, team, "whole"))
    assert limits_of(pod) == {GPU: "1"}


def test_a_rewrite_of_pods_alone_leaves_the_charge_of_a_card(site: Installation, team: str) -> None:
    """Rightslice does not do this: another webhook stands for a right-sizer that does."""
    pod = make_pod("try").namespace(team).gpus(1).build()
    with register_patching_webhook(site.plane, "shrink", pod, shrink_pod):
        create_job(site.plane, queued_job("whole", team, **{"rightslice.dev/keep": "true"}))
        [pod] = eventually(lambda: pods_of_job(site.plane, team, "whole"))

    assert limits_of(pod) == {SLICE: "1"}
    assert admitted_amounts(site.plane, team) == {"whole": {"cpu": "1", GPU: "1"}}


def test_the_pod_of_a_right_sized_jobset_is_charged_as_a_slice_and_gets_one(site: Installation, team: str) -> None:
    stored = site.plane.api.create(JOBSETS.format(team), queued_jobset("small", team))
    [replicated] = stored["spec"]["replicatedJobs"]
    assert limits_of(replicated["template"]["spec"]["template"]) == {SLICE: "1"}

    amounts = eventually(lambda: admitted_amounts(site.plane, team))
    assert amounts == {"small": {"cpu": "1", SLICE: "1"}}
    [pod] = eventually(lambda: pods_of_job(site.plane, team, "small-main-0"))
    assert limits_of(pod) == {SLICE: "1"}


def test_commands_read_what_kueue_charges_from_its_config_map(site: Installation, team: str) -> None:
    plane, job = site.plane, json.dumps(queued_job("small", team))
    path, name = "/api/v1/namespaces/kueue-system/configmaps", "kueue-manager-config"
    elsewhere = {"input": SLICE, "strategy": "Replace", "outputs": {"example.com/slices": "1"}}
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"transformations": [elsewhere]},
    }

    usual = rightslice(plane, "check", "-", "-o", "json", stdin=job)
    plane.api.create(path, {"metadata": {"name": name}, "data": {KUEUE_CONFIG_FILE: json.dumps(configuration)}})
    try:
        checked = rightslice(plane, "check", "-", "-o", "json", stdin=job)
    finally:
        plane.api.delete(f"{path}/{name}")

    assert ("GPU-R101" in usual.stdout, "NotAdmittedByQueue" in usual.stdout) == (True, False), usual.stdout
    assert "NotAdmittedByQueue" in checked.stdout, checked.stderr


def test_a_job_that_was_charged_as_a_card_gets_a_slice_when_it_is_created_again_as_advised(
    site: Installation, team: str
) -> None:
    stored = create_job(site.plane, queued_job("small", team, **{"rightslice.dev/keep": "true"}))
    eventually(lambda: admitted_amounts(site.plane, team))
    del stored["spec"]["template"]["metadata"]["annotations"]["rightslice.dev/keep"]
    checked = rightslice(site.plane, "check", "-", "-o", "json", stdin=json.dumps(stored))
    assert "AlreadyCharged" in checked.stdout, checked.stderr

    path = f"{JOBS.format(team)}/small"
    site.plane.api.delete(path, propagationPolicy="Foreground")
    eventually(lambda: not pods_of_job(site.plane, team, "small") and not site.plane.api.exists(path))
    again = create_job(site.plane, queued_job("small", team))

    assert limits_of(again["spec"]["template"]) == {SLICE: "1"}
    eventually(lambda: admitted_amounts(site.plane, team) == {"small": {"cpu": "1", SLICE: "1"}})


KINDS: dict[str, tuple[str, Callable[[str, str], Json], Callable[[Json], bool]]] = {
    "Jobs": (JOBS, queued_job, lambda status: bool(status.get("succeeded"))),
    "JobSets": (JOBSETS, queued_jobset, lambda status: status.get("terminalState") == "Completed"),
}


@pytest.mark.parametrize(("path", "queued", "is_done"), KINDS.values(), ids=KINDS)
def test_workloads_go_through_a_full_queue_once_each(
    site: Installation,
    team: str,
    path: str,
    queued: Callable[[str, str], Json],
    is_done: Callable[[Json], bool],
) -> None:
    """None is lost, none is created again, and none is charged twice."""
    plane, names, path = site.plane, [f"job-{number}" for number in range(QUEUED_JOBS)], path.format(team)
    uids = {name: plane.api.create(path, queued(name, team))["metadata"]["uid"] for name in names}
    most: dict[str, int] = {}

    def unfinished() -> list[str]:
        for name, amount in reserved_amounts(plane, team).items():
            most[name] = max(most.get(name, 0), amount)
        jobs: Any = plane.api.get(path)["items"]
        assert {job["metadata"]["name"]: job["metadata"]["uid"] for job in jobs} == uids
        return [job["metadata"]["name"] for job in jobs if not is_done(job.get("status", {}))]

    eventually(unfinished, until=lambda jobs: not jobs, within=PATIENCE_SECONDS + 5 * QUEUED_JOBS)
    workloads: Any = plane.api.get(f"{API}/namespaces/{team}/workloads")["items"]
    assert sorted(one["metadata"]["ownerReferences"][0]["name"] for one in workloads) == sorted(names)
    assert {str(amounts) for amounts in admitted_amounts(plane, team).values()} == {str({"cpu": "1", SLICE: "1"})}
    assert most[SLICE] <= 4
    assert GPU not in most
    assert eventually(lambda: not reserved_amounts(plane, team))
