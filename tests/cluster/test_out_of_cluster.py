"""Out of cluster by the words of docs/install.md, as a user would do it; and taken out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.client import RefusedError
from tests.cluster.installed import EVERYTHING, commands, installed
from tests.cluster.plane import Plane
from tests.make import make_pod
from webhook.manifests.objects import path_of


def refusal(plane: Plane, namespace: str) -> str:
    """Why a privileged GPU pod is refused."""
    pod = make_pod("greedy").namespace(namespace).gpus(1)
    pod.main["securityContext"] = {"privileged": True}
    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build(), dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("mode", "wanted"), [("enforce", "privileged must be false in a pod that touches GPUs"), ("audit", "")]
)
def test_the_words_of_the_page_work(plane: Plane, namespace: str, tmp_path: Path, mode: str, wanted: str) -> None:
    apply, serve = commands()
    assert (apply[0], serve[:3]) == ("kubectl", ["rightslice", "serve", "webhook"])

    with installed(plane, tmp_path, f"--mode={mode}"):
        said = refusal(plane, namespace)
        assert (wanted in said) if wanted else (said == "")

    assert not [one for one in EVERYTHING if plane.api.exists(path_of(one))]
    assert refusal(plane, namespace) == ""
