"""`install`: its last message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.installing import apply
from webhook.installing.apply import InstallError, install_manifests
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
    created = [answer for one in objects for answer in (error_answer(404, "NotFound"), json_answer(one, 201))]
    async with scripted_api(tmp_path, READY, *created, UNTRUSTED) as (_, api):
        with pytest.raises(InstallError) as caught:
            await install_manifests(api, objects, lambda _: None, seconds=-1)
    assert ("Until then GPU pods are rejected. To admit them: rightslice install" in str(caught.value)) is closed
