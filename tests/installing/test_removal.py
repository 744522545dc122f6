"""`uninstall`: what it deletes, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import Json
from tests.conftest import ROOT
from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from webhook.cli.commands.install import remaining_parts
from webhook.documents.reader import read_documents
from webhook.installing import apply
from webhook.installing.apply import DeletionTimeoutError, has_policy_kinds, install_manifests, uninstall_manifests
from webhook.manifests.objects import (
    AGENT_AND_EXTENDER_OBJECTS,
    OVERLAY_OBJECTS,
    RUNTIME_OBJECTS,
    api_path,
    may_be_foreign,
    objects_to_remove,
)
from webhook.policy.crds import gpunode_crd

GONE = error_answer(404, "NotFound")
OTHERS = (*OVERLAY_OBJECTS, *RUNTIME_OBJECTS)
ALL_OTHERS = (*OTHERS, *AGENT_AND_EXTENDER_OBJECTS)
ALL_METHODS = [method for one in ALL_OTHERS for method in ["GET"] * may_be_foreign(one) + ["DELETE"]]
NO_OTHERS = (GONE,) * len(ALL_METHODS)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "DELETION_POLL_SECONDS", 0.001)


def terminating(reason: str) -> Json:
    """A terminating CRD with the status of its controller."""
    crd = gpunode_crd()
    condition = {"type": "Terminating", "status": "True", "reason": reason}
    metadata = {"resourceVersion": "7", "deletionTimestamp": "2026-06-01T00:00:00Z"}
    return {**crd, "metadata": {**crd["metadata"], **metadata}, "status": {"conditions": [condition]}}


PENDING, FAILED = (json_answer(terminating(f"InstanceDeletion{how}")) for how in ("InProgress", "Failed"))
RECREATED = json_answer({**gpunode_crd(), "metadata": {"name": "gpunodes.rightslice.dev", "resourceVersion": "9"}})

DELETIONS: dict[str, tuple[tuple[Answer, ...], list[str]]] = {
    "a deleted CRD is read once": ((GONE,), ["GET"]),
    "a terminating CRD is waited for": ((PENDING, PENDING, GONE), ["GET", "GET", "GET"]),
    "a stuck deletion is triggered again": (
        (FAILED, json_answer({}), GONE),
        ["GET", "PATCH", "GET"],
    ),
    "and again if it fails again": (
        (FAILED, json_answer({}), FAILED, json_answer({}), GONE),
        ["GET", "PATCH", "GET", "PATCH", "GET"],
    ),
    "without permission it is waited for": ((FAILED, error_answer(403, "Forbidden"), GONE), ["GET", "PATCH", "GET"]),
    "a conflict is ignored": ((FAILED, error_answer(409, "Conflict"), GONE), ["GET", "PATCH", "GET"]),
    "a CRD that was created again counts as deleted": ((RECREATED,), ["GET"]),
}


@pytest.mark.parametrize(("answers", "methods"), DELETIONS.values(), ids=DELETIONS)
async def test_uninstall_waits_for_the_deletion_of_crds(
    tmp_path: Path, answers: tuple[Answer, ...], methods: list[str]
) -> None:
    lines: list[str] = []
    async with scripted_api(tmp_path, *NO_OTHERS, json_answer({}), GONE, *answers) as (server, api):
        await uninstall_manifests(api, [gpunode_crd()], lines.append, with_policies=True, seconds=20)

    assert lines == ["removed CustomResourceDefinition gpunodes.rightslice.dev"]
    assert [request.method for request in server.requests] == [*ALL_METHODS, "DELETE", "GET", *methods]


AGENTS = "Namespace rightslice-agent"
NAMESPACES: dict[str, tuple[Json, str]] = {
    "one of the manifests or the chart": ({"app.kubernetes.io/part-of": "rightslice"}, f"removed {AGENTS}"),
    "one of an admin": (
        {"pod-security.kubernetes.io/enforce": "privileged"},
        f"kept {AGENTS}: its label app.kubernetes.io/part-of is not rightslice, so an admin made it",
    ),
    "one without labels": (
        {},
        f"kept {AGENTS}: its label app.kubernetes.io/part-of is not rightslice, so an admin made it",
    ),
}


@pytest.mark.parametrize(("labels", "line"), NAMESPACES.values(), ids=NAMESPACES)
async def test_a_namespace_of_the_agent_is_deleted_if_the_installation_made_it(
    tmp_path: Path, labels: Json, line: str
) -> None:
    lines: list[str] = []
    found, done = json_answer({"metadata": {"labels": labels}}), json_answer({})
    kept = line.startswith("kept")
    async with scripted_api(tmp_path, *NO_OTHERS[2:], found, *[done] * (not kept), GONE) as (server, api):
        await uninstall_manifests(api, [], lines.append, with_policies=True, seconds=20)

    assert lines == [line, *["nothing to remove"] * kept]
    deleted = [each.path for each in server.requests if each.method == "DELETE"]
    assert ("/api/v1/namespaces/rightslice-agent" in deleted) is not kept


def test_the_agent_is_removed_from_a_namespace_that_stays() -> None:
    files = ("rbac", "daemonset", "networkpolicy")
    texts = {name: (ROOT / "manifests" / "agent" / f"{name}.yaml").read_bytes() for name in files}
    made = [one.data for name, text in texts.items() for one in read_documents(text, name, aliases=True)]
    removed = [one for one in objects_to_remove([], with_policies=True) if "namespace" in one["metadata"]]
    names = {one["kind"] for one in made if not one["kind"].startswith(("Cluster", "Validating"))}

    assert names == {one["kind"] for one in removed if one["metadata"]["namespace"] == "rightslice-agent"}
    assert {one["metadata"]["name"] for one in made} == {"rightslice-agent"}


async def test_timeout_names_the_object(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, *NO_OTHERS, json_answer({}), GONE, PENDING) as (_, api):
        with pytest.raises(DeletionTimeoutError) as lines:
            await uninstall_manifests(api, [gpunode_crd()], lambda _line: None, with_policies=True, seconds=-1)

    assert str(lines.value) == (
        "waited -1 s for the deletion of CustomResourceDefinition gpunodes.rightslice.dev. "
        "Check: kubectl get customresourcedefinition gpunodes.rightslice.dev -o yaml"
    )


async def test_uninstall_without_policies_does_not_wait(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, *NO_OTHERS) as (server, api):
        await uninstall_manifests(api, [gpunode_crd()], (lines := list[str]()).append, with_policies=False, seconds=20)

    assert lines == ["nothing to remove"]
    assert [request.method for request in server.requests] == ["DELETE"] * len(OTHERS)


async def test_install_waits_for_terminating_objects(tmp_path: Path) -> None:
    """Objects that are applied to a terminating kind are deleted with it."""
    async with scripted_api(tmp_path, PENDING) as (server, api):
        with pytest.raises(DeletionTimeoutError):
            await install_manifests(api, [gpunode_crd()], lambda _line: None, seconds=-1)

    assert [request.method for request in server.requests] == ["GET"]


async def test_object_with_a_finalizer_is_reported_as_deleting(tmp_path: Path) -> None:
    blocked = json_answer({"metadata": {"deletionTimestamp": "2026-06-01T00:00:00Z", "finalizers": ["example.com/a"]}})
    gone = json_answer({"kind": "Status", "metadata": {}, "status": "Success"})
    lines: list[str] = []
    async with scripted_api(tmp_path, blocked, gone, *NO_OTHERS[2:]) as (_, api):
        await uninstall_manifests(api, [], lines.append, with_policies=False, seconds=20)

    assert lines == [
        "deleting ConfigMap rightslice-system/rightslice-address, blocked by the finalizer example.com/a",
        "removed ServiceMonitor rightslice-system/rightslice",
    ]


@pytest.mark.parametrize(
    ("answer", "exists"), [(GONE, False), (json_answer({}), True)], ids=["no kind exists", "a kind exists"]
)
async def test_remaining_policy_kinds_are_found(tmp_path: Path, answer: Answer, *, exists: bool) -> None:
    async with scripted_api(tmp_path, answer) as (_, api):
        assert await has_policy_kinds(api, [gpunode_crd()]) is exists


@pytest.mark.parametrize("folder", ["agent", "scheduler/extender", "scheduler/second"])
def test_uninstall_deletes_cluster_wide_objects_of_other_manifests(folder: str) -> None:
    files = [file for file in (ROOT / "manifests" / folder).glob("*.yaml") if file.name != "kustomization.yaml"]
    objects = [one.data for file in files for one in read_documents(file.read_bytes(), file.name, aliases=True)]
    global_paths = {api_path(one) for one in objects if one["kind"].startswith(("Cluster", "Validating", "Namespace"))}

    assert global_paths
    assert global_paths <= {api_path(one) for one in objects_to_remove([], with_policies=True)}
    assert not global_paths & {api_path(one) for one in objects_to_remove([], with_policies=False)}


KEPT_POLICIES = (
    "Policies, exceptions and namespace rightslice-system are still there: rightslice uninstall --with-policies"
)
KEPT_RELEASE = "Helm still lists the release gpu: helm uninstall gpu --namespace rightslice-system"
REMAINING = {
    "nothing": ("", False, []),
    "policies": ("", True, [KEPT_POLICIES]),
    "the release that installed it": ("gpu", False, [KEPT_RELEASE]),
    "both": ("gpu", True, [KEPT_POLICIES, KEPT_RELEASE]),
}


@pytest.mark.parametrize(("release", "has_policies", "lines"), REMAINING.values(), ids=REMAINING)
def test_uninstall_says_what_remains(release: str, has_policies: bool, lines: list[str]) -> None:
    assert list(remaining_parts(release, has_policies=has_policies)) == lines
