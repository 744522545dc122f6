"""`uninstall`: what it deletes, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import Json
from tests.conftest import ROOT
from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from webhook.documents.reader import read_documents
from webhook.installing import removal
from webhook.installing.apply import install_manifests
from webhook.installing.removal import DeletionTimeoutError, has_policy_kinds, uninstall_manifests
from webhook.manifests.gpunode_crd import gpunode_crd
from webhook.manifests.objects import (
    AGENT_AND_EXTENDER_OBJECTS,
    OVERLAY_OBJECTS,
    RUNTIME_OBJECTS,
    api_path,
    objects_to_remove,
)

GONE = error_answer(404, "NotFound")
BESIDE_IT = (*OVERLAY_OBJECTS, *RUNTIME_OBJECTS)
ALL_BESIDE_IT = (*BESIDE_IT, *AGENT_AND_EXTENDER_OBJECTS)
NOTHING_BESIDE_IT = (GONE,) * len(ALL_BESIDE_IT)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "DELETION_POLL_SECONDS", 0.001)


def terminating(reason: str) -> Json:
    """A terminating CRD with the status of its controller."""
    crd = gpunode_crd()
    condition = {"type": "Terminating", "status": "True", "reason": reason}
    going = {"resourceVersion": "7", "deletionTimestamp": "2026-06-01T00:00:00Z"}
    return {**crd, "metadata": {**crd["metadata"], **going}, "status": {"conditions": [condition]}}


PENDING, FAILED = (json_answer(terminating(f"InstanceDeletion{how}")) for how in ("InProgress", "Failed"))
MADE_ANEW = json_answer({**gpunode_crd(), "metadata": {"name": "gpunodes.rightslice.dev", "resourceVersion": "9"}})

ASKED: dict[str, tuple[tuple[Answer, ...], list[str]]] = {
    "one that is gone is not asked for twice": ((GONE,), ["GET"]),
    "one that goes is waited for": ((PENDING, PENDING, GONE), ["GET", "GET", "GET"]),
    "one that its controller gave up is changed, so that it looks again": (
        (FAILED, json_answer({}), GONE),
        ["GET", "PATCH", "GET"],
    ),
    "and again, where it failed again": (
        (FAILED, json_answer({}), FAILED, json_answer({}), GONE),
        ["GET", "PATCH", "GET", "PATCH", "GET"],
    ),
    "whoever may not change it waits": ((FAILED, error_answer(403, "Forbidden"), GONE), ["GET", "PATCH", "GET"]),
    "a change that came too late is none": ((FAILED, error_answer(409, "Conflict"), GONE), ["GET", "PATCH", "GET"]),
    "one that somebody made anew is another": ((MADE_ANEW,), ["GET"]),
}


@pytest.mark.parametrize(("answers", "asked"), ASKED.values(), ids=ASKED)
async def test_uninstall_waits_for_the_deletion_of_crds(
    tmp_path: Path, answers: tuple[Answer, ...], asked: list[str]
) -> None:
    told: list[str] = []
    async with scripted_api(tmp_path, *NOTHING_BESIDE_IT, json_answer({}), *answers) as (server, api):
        await uninstall_manifests(api, [gpunode_crd()], told.append, with_policies=True, seconds=20)

    assert told == ["removed CustomResourceDefinition gpunodes.rightslice.dev"]
    assert [request.method for request in server.requests] == ["DELETE"] * (len(ALL_BESIDE_IT) + 1) + asked


async def test_timeout_names_the_object(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, *NOTHING_BESIDE_IT, json_answer({}), PENDING) as (_, api):
        with pytest.raises(DeletionTimeoutError) as told:
            await uninstall_manifests(api, [gpunode_crd()], lambda _line: None, with_policies=True, seconds=-1)

    assert str(told.value) == (
        "waited -1 s for the deletion of CustomResourceDefinition gpunodes.rightslice.dev. "
        "Check: kubectl get customresourcedefinition gpunodes.rightslice.dev -o yaml"
    )


async def test_uninstall_without_policies_does_not_wait(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, *NOTHING_BESIDE_IT) as (server, api):
        await uninstall_manifests(api, [gpunode_crd()], (told := list[str]()).append, with_policies=False, seconds=20)

    assert told == ["nothing to remove"]
    assert [request.method for request in server.requests] == ["DELETE"] * len(BESIDE_IT)


async def test_install_waits_for_terminating_objects(tmp_path: Path) -> None:
    """Objects that are applied to a terminating kind are deleted with it."""
    async with scripted_api(tmp_path, PENDING) as (server, api):
        with pytest.raises(DeletionTimeoutError):
            await install_manifests(api, [gpunode_crd()], lambda _line: None, seconds=-1)

    assert [request.method for request in server.requests] == ["GET"]


async def test_object_with_a_finalizer_is_reported_as_deleting(tmp_path: Path) -> None:
    held = json_answer({"metadata": {"deletionTimestamp": "2026-06-01T00:00:00Z", "finalizers": ["example.com/a"]}})
    gone = json_answer({"kind": "Status", "metadata": {}, "status": "Success"})
    told: list[str] = []
    async with scripted_api(tmp_path, held, gone, *NOTHING_BESIDE_IT[2:]) as (_, api):
        await uninstall_manifests(api, [], told.append, with_policies=False, seconds=20)

    assert told == [
        "deleting ConfigMap rightslice-system/rightslice-address, blocked by the finalizer example.com/a",
        "removed ServiceMonitor rightslice-system/rightslice",
    ]


@pytest.mark.parametrize(
    ("answer", "kept"), [(GONE, False), (json_answer({}), True)], ids=["nothing there", "a kind there"]
)
async def test_remaining_policy_kinds_are_found(tmp_path: Path, answer: Answer, *, kept: bool) -> None:
    async with scripted_api(tmp_path, answer) as (_, api):
        assert await has_policy_kinds(api, [gpunode_crd()]) is kept


@pytest.mark.parametrize("folder", ["agent", "scheduler/extender", "scheduler/second"])
def test_uninstall_deletes_cluster_wide_objects_of_other_manifests(folder: str) -> None:
    files = [file for file in (ROOT / "manifests" / folder).glob("*.yaml") if file.name != "kustomization.yaml"]
    objects = [one.data for file in files for one in read_documents(file.read_bytes(), file.name, aliases=True)]
    wide = {api_path(one) for one in objects if one["kind"].startswith(("Cluster", "Validating"))}

    assert wide
    assert wide <= {api_path(one) for one in objects_to_remove([], with_policies=True)}
    assert not wide & {api_path(one) for one in objects_to_remove([], with_policies=False)}
