"""Pods created by users: right-sized, rejected, dry-run, debugged, very large, and reinvoked after another webhook."""

from __future__ import annotations

import json
import re
import secrets

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import apply_admission_objects, pod_webhook, serve_recording_webhook
from tests.house.checkout import read_checkout_file

GPU, SLICE, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
TAINT = {"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}
PRIVILEGED = "privileged must be false in a pod that uses GPUs"


def notebook(name: str, team: str) -> Json:
    """Return a pod that requests a whole GPU and declares that it needs 8 GiB of it."""
    return make_pod(name).namespace(team).needs("8Gi").gpus(1).build()


def container_requests(pod: Json) -> Json:
    """Return the resources that the first container requests."""
    limits: Json = pod["spec"]["containers"][0]["resources"]["limits"]
    return limits


def wait_until_running(site: Installation, team: str, name: str) -> Json:
    """Return a pod once it runs."""
    path = f"/api/v1/namespaces/{team}/pods/{name}"
    return eventually(lambda: site.plane.api.get(path), until=lambda pod: pod["status"]["phase"] == "Running")


def test_a_right_sized_pod_is_scheduled_on_a_mig_node_and_runs(site: Installation, team: str) -> None:
    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(notebook("sized", team)))

    pod = wait_until_running(site, team, "sized")
    node = site.plane.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    assert container_requests(pod) == {SLICE: "1"}
    assert int(node["status"]["allocatable"][SLICE]) > 0
    assert TAINT in pod["spec"]["tolerations"]
    assert json.loads(pod["metadata"]["annotations"]["rightslice.dev/decision"])["resource"] == SLICE


USER_SECTION = read_checkout_file("docs/install.md").partition("## What users see")[2].partition("\n## ")[0]
DOCUMENTED_OUTPUT = dict(re.findall(r"^\$ kubectl apply -f (\S+)\n(.*?)^```", USER_SECTION, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("file", sorted(DOCUMENTED_OUTPUT))
def test_the_documented_output_is_shown(site: Installation, team: str, file: str) -> None:
    manifest = read_checkout_file(file).replace("team-vision", team)

    result = site.plane.kubectl("apply", "-f", "-", stdin=manifest, check=False)

    output = (result.stderr + result.stdout).replace('"STDIN"', f'"{file}"')
    assert output.splitlines() == DOCUMENTED_OUTPUT[file].replace("team-vision", team).splitlines()


def test_a_dry_run_changes_nothing(site: Installation, team: str) -> None:
    nodes = site.plane.api.get("/api/v1/nodes")["items"]
    halves = sum(int(node["status"]["allocatable"].get(HALF, "0")) for node in nodes)
    half = make_pod("half").namespace(team).needs("30Gi").gpus(1).build()
    path = f"/api/v1/namespaces/{team}/pods"

    for _ in range(halves + 1):
        result = site.plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(half))
        assert container_requests(json.loads(result.stdout)) == {HALF: "1"}, "a dry run must not reserve a slice"

    assert site.plane.api.get(path)["items"] == []
    assert site.plane.api.get(f"/api/v1/namespaces/{team}/events")["items"] == []
    assert container_requests(site.plane.api.create(path, half)) == {HALF: "1"}


def add_vendor_sidecar(request: Json) -> list[Json]:
    """Return a patch that adds a sidecar to each pod that has none."""
    containers = request["object"]["spec"]["containers"]
    if any(container["name"] == "proxy" for container in containers):
        return []
    return [{"op": "add", "path": "/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}]


def test_the_webhook_is_reinvoked_after_a_vendor_adds_a_sidecar(quiet_site: Installation, team: str) -> None:
    site = quiet_site
    metric = 'admission_requests_total\\{operation="CREATE",result="(?:allowed|patched)",route="mutate"\\}'
    name = f"sidecars-{secrets.token_hex(3)}"  # after ours
    with (
        serve_recording_webhook(add_vendor_sidecar) as other,
        apply_admission_objects(site.plane, [pod_webhook(name, f"{other.url}/sidecars", other.bundle, team)]),
    ):
        path = f"/api/v1/namespaces/{team}/pods"
        eventually(lambda: other.reviews or not site.plane.api.create(path, notebook("try", team), dryRun="All"))
        before = sum(site.metric_values(metric))
        site.plane.api.create(path, notebook("meshed", team))
        pod = wait_until_running(site, team, "meshed")
        calls = sum(site.metric_values(metric)) - before

    sidecar, main = pod["spec"]["containers"]
    assert (sidecar["name"], sidecar["resources"]) == ("proxy", {})
    assert main["resources"]["limits"] == main["resources"]["requests"] == {SLICE: "1"}
    assert pod["spec"]["tolerations"].count(TAINT) == 1
    [term] = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert len(term["matchExpressions"]) == 1
    assert calls == 2


def test_updates_are_evaluated_and_our_annotations_are_protected(site: Installation, team: str) -> None:
    site.plane.api.create(f"/api/v1/namespaces/{team}/pods", notebook("sized", team))
    wait_until_running(site, team, "sized")
    namespace_flag = f"--namespace={team}"

    site.plane.kubectl("set", "image", "pod/sized", "main=example/app:2", namespace_flag)
    site.plane.kubectl("label", "pod", "sized", "reviewed=true", namespace_flag)
    record = "rightslice.dev/decision={}"
    forged = site.plane.kubectl("annotate", "--overwrite", "pod", "sized", record, namespace_flag, check=False)

    assert "[GPU-S308]" in forged.stderr
    assert container_requests(wait_until_running(site, team, "sized")) == {SLICE: "1"}


def test_a_debug_container_is_evaluated(site: Installation, team: str) -> None:
    site.plane.api.create(f"/api/v1/namespaces/{team}/pods", notebook("sized", team))
    wait_until_running(site, team, "sized")
    debug = ("debug", "sized", f"--namespace={team}", "--image=busybox", "--container")

    site.plane.kubectl(*debug, "plain", "--profile=general")
    refused = site.plane.kubectl(*debug, "privileged", "--profile=sysadmin", check=False)

    names = [item["name"] for item in wait_until_running(site, team, "sized")["spec"]["ephemeralContainers"]]
    assert names == ["plain"]
    assert 'webhook "validate.rightslice.dev" denied the request: 1 problem in Pod' in refused.stderr
    assert f"spec.ephemeralContainers[1].securityContext.privileged: {PRIVILEGED}" in refused.stderr


def test_mirror_pods_are_unchanged_and_cannot_be_forged(site: Installation, team: str) -> None:
    mirror = make_pod("static-a100-mixed-1").namespace(team).needs("8Gi").gpus(1).spec(nodeName="a100-mixed-1")
    mirror.annotate("kubernetes.io/config.mirror", "0123456789abcdef")
    mirror.annotate("kubernetes.io/config.source", "file")
    create = ("create", "-f", "-", "-o", "json")
    text = json.dumps(mirror.build())
    node = ("--as=system:node:a100-mixed-1", "--as-group=system:nodes", "--as-group=system:masters")

    forged = site.plane.kubectl(*create, stdin=text, check=False)
    created = site.plane.kubectl(*create, *node, stdin=text)

    assert "kubernetes.io/config.mirror" in forged.stderr
    assert container_requests(json.loads(created.stdout)) == {GPU: "1"}


def test_a_pod_with_generate_name_is_right_sized_and_rejected(site: Installation, team: str) -> None:
    pod = notebook("", team)
    pod["metadata"] |= {"generateName": "job-"}
    del pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{team}/pods"

    assert container_requests(site.plane.api.create(path, pod)) == {SLICE: "1"}

    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(RefusedError, match=f"1 problem in Pod {team}/job-.* .*policy guard"):
        site.plane.api.create(path, pod)


def large_pod(team: str, size: int) -> Json:
    """Return a pod of about this many bytes, most of them in environment variables of a container without GPUs."""
    pod = make_pod("large").namespace(team).needs("8Gi").gpus(1).build()
    parts = [{"name": f"PART_{index}", "value": "x" * 99_900} for index in range(size // 100_000)]
    pod["spec"]["initContainers"] = [{"name": "prepare", "image": "ghcr.io/example/prepare:1", "env": parts}]
    return pod


def test_the_largest_pods_are_evaluated_and_right_sized(site: Installation, team: str) -> None:
    path = f"/api/v1/namespaces/{team}/pods"

    assert container_requests(site.plane.api.create(path, large_pod(team, 3_000_000), dryRun="All")) == {SLICE: "1"}
    assert container_requests(site.plane.api.create(path, large_pod(team, 1_400_000))) == {SLICE: "1"}, (
        "about the largest object that etcd stores"
    )

    privileged = large_pod(team, 3_000_000)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(RefusedError, match=PRIVILEGED):
        site.plane.api.create(path, privileged)
