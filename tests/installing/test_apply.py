"""`install`: its last message, and the webhooks that it creates; `doctor` reads metrics before it probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web

from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from webhook.cli.commands.install import InstallMode, resolve_install, shipped_manifests
from webhook.installing import apply
from webhook.installing.apply import InstallError, install_manifests
from webhook.installing.facts import CurrentInstall, read_cluster_facts
from webhook.manifests.objects import WEBHOOK_KINDS

TRUSTED = json_answer({"webhooks": [{"clientConfig": {"caBundle": "eA=="}}]})
READY = json_answer(
    {
        "metadata": {"generation": 1},
        "spec": {},
        "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1},
    }
)
BOTH = error_answer(
    403,
    "Forbidden",
    'admission webhook "validate.rightslice.dev" denied the request: rightslice answers: validate and mutate',
)
SILENT = error_answer(500, "InternalError", 'failed calling webhook "validate.rightslice.dev": connection refused')
OTHERS = error_answer(403, "Forbidden", "minimum cpu usage per Container is 1, but request is 100m")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(apply, "SETTLE_SECONDS", 0.001)


async def last_message(folder: Path, *answers: Answer, seconds: float = 60) -> str:
    """The last message of `install_manifests` for these answers to the dry-run pod."""
    messages: list[str] = []
    async with scripted_api(folder, READY, TRUSTED, TRUSTED, *answers) as (_, api):
        await install_manifests(api, [], messages.append, seconds=seconds)
    return messages[-1]


@pytest.mark.parametrize("before", [SILENT, OTHERS], ids=["no answer", "a rejection by others"])
async def test_temporary_answers_are_waited_for(tmp_path: Path, before: Answer) -> None:
    assert await last_message(tmp_path, before, BOTH) == "the webhooks answer"


async def test_persistent_rejection_by_others_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "OTHERS_GRACE_SECONDS", -1)

    assert await last_message(tmp_path, OTHERS) == (
        "the webhooks could not be tested, because the API server rejects the dry-run pod: "
        "minimum cpu usage per Container is 1, but request is 100m"
    )


async def test_timeout_reports_the_last_answer(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"last: failed calling webhook .validate.rightslice.dev.: connection"):
        await last_message(tmp_path, SILENT, seconds=-1)


UNTRUSTED = json_answer({"webhooks": [{"clientConfig": {}}]})


@pytest.mark.parametrize(("mode", "closed"), [("enforce", True), ("audit", False)])
async def test_timeout_reports_the_effect_on_pods(tmp_path: Path, mode: str, closed: bool) -> None:
    objects = [one for one in shipped_manifests(InstallMode(mode)) if one["kind"] in WEBHOOK_KINDS]
    missing = error_answer(404, "NotFound")
    created = [answer for one in objects for answer in (missing, missing, json_answer(one, 201))]
    async with scripted_api(tmp_path, READY, *created, UNTRUSTED) as (_, api):
        with pytest.raises(InstallError) as caught:
            await install_manifests(api, objects, lambda _: None, seconds=-1)
    assert ("Until then GPU pods are rejected. To admit them: rightslice install" in str(caught.value)) is closed


async def test_webhooks_are_created_with_the_bundle_of_the_replica_that_is_ready(tmp_path: Path) -> None:
    created: list[Any] = []

    async def store(request: web.Request) -> web.StreamResponse:
        created.append(await request.json())
        return web.json_response(created[-1], status=201)

    objects = [one for one in shipped_manifests(InstallMode.ENFORCE) if one["kind"] in WEBHOOK_KINDS]
    missing, secret = error_answer(404, "NotFound"), json_answer({"data": {"ca.crt": "eA=="}})
    answers = [answer for _ in objects for answer in (missing, secret, store)]
    async with scripted_api(tmp_path, READY, *answers, TRUSTED, TRUSTED, BOTH) as (_, api):
        await install_manifests(api, objects, lambda _: None, seconds=60)

    assert {webhook["clientConfig"]["caBundle"] for one in created for webhook in one["webhooks"]} == {"eA=="}


EMPTY = {"items": [], "metadata": {}, "spec": {"template": {"spec": {}}}}
"""An answer to every GET of `doctor`."""


async def test_the_dry_run_pod_of_doctor_does_not_count_in_the_metrics_that_it_reads(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, *[json_answer(EMPTY)] * 40) as (server, api):
        await read_cluster_facts(api)

    calls = [(request.method, request.path) for request in server.requests]
    assert calls.index(("GET", "/metrics")) < calls.index(("POST", "/api/v1/namespaces/default/pods"))
    assert calls.index(("GET", "/metrics")) == 2, "only the version and the namespace are read before"


async def test_doctor_reads_the_webhooks_once_and_the_namespace_that_they_name(tmp_path: Path) -> None:
    service = {"webhooks": [{"clientConfig": {"service": {"namespace": "gpu-system"}}}]}
    answers = [json_answer(EMPTY), json_answer(service), *[json_answer(EMPTY)] * 40]
    async with scripted_api(tmp_path, *answers) as (server, api):
        facts = await read_cluster_facts(api)

    paths = [request.path for request in server.requests]
    assert [path for path in paths if "mutatingwebhookconfigurations" in path] == [paths[1]]
    assert (facts.namespace, facts.mutating) == ("gpu-system", service)
    assert "/apis/apps/v1/namespaces/gpu-system/deployments/rightslice" in paths


async def test_webhooks_that_may_not_be_read_are_looked_for_in_the_usual_namespace(tmp_path: Path) -> None:
    answers = [json_answer(EMPTY), error_answer(403, "Forbidden"), *[json_answer(EMPTY)] * 40]
    async with scripted_api(tmp_path, *answers) as (_, api):
        facts = await read_cluster_facts(api)

    assert (facts.namespace, facts.mutating, facts.refused["mutating"].status) == ("rightslice-system", None, 403)


@pytest.mark.parametrize(("image", "noted"), [("", True), ("registry.example.com/rightslice:1", False)])
def test_an_image_that_no_node_can_pull_is_noted(image: str, noted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    resolve_install(CurrentInstall("", image), CurrentInstall())

    assert ("names no registry" in capsys.readouterr().err) is noted


@pytest.mark.parametrize(("asked", "mode"), [("audit", "audit"), ("", "enforce")])
def test_the_command_for_a_release_of_helm_keeps_the_mode_that_was_asked_for(
    asked: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        resolve_install(CurrentInstall(asked), CurrentInstall("enforce", helm_release="gpu"))

    assert f"helm upgrade gpu CHART --namespace rightslice-system --reset-then-reuse-values --set mode={mode};" in (
        capsys.readouterr().err
    )
