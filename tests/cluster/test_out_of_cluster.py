"""Out of cluster by the words of docs/install.md, as a user would do it."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

from tests.cluster.client import RefusedError
from tests.cluster.plane import Plane
from tests.cluster.processes import Process, free_port
from tests.cluster.test_manifests import copy_of
from tests.conftest import ROOT
from tests.house.checkout import read
from tests.make import make_pod
from webhook.cli.install import InstallMode, manifests
from webhook.installing.applying import hooks_answer, uninstall
from webhook.kube.api import Api
from webhook.manifests.objects import HOOKS, path_of

PAGE = read("docs/install.md").partition("## Out of cluster")[2].partition("## Take it out")[0]


def commands() -> list[list[str]]:
    """The commands of the page, in order, each as its words."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def refusal(plane: Plane, namespace: str) -> str:
    """Why a privileged GPU pod is refused."""
    pod = make_pod("greedy").namespace(namespace).gpus(1)
    pod.main["securityContext"] = {"privileged": True}
    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build(), dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


def test_the_words_of_the_page_work(plane: Plane, namespace: str, tmp_path: Path) -> None:
    apply, serve = commands()
    assert (apply[0], serve[:3]) == ("kubectl", ["rightslice", "serve", "webhook"])
    port = free_port()
    copy_of(ROOT / "manifests", tmp_path / "manifests")
    address = tmp_path / "manifests" / "overlays" / "out-of-cluster" / "address.yaml"
    address.write_text(address.read_text().replace("127.0.0.1:8443", f"127.0.0.1:{port}"))
    folder = str(tmp_path / apply[-1])
    words = [word.replace("0.0.0.0:8443", f"127.0.0.1:{port}") for word in serve[1:]]
    words[words.index("policies")] = str(ROOT / "policies")
    command = [sys.executable, "-m", "webhook.cli", *words, f"--kubeconfig={plane.kubeconfig}"]
    server = Process("rightslice", command, tmp_path / "log", lambda: asyncio.run(ask("answers")))

    async def ask(step: str) -> bool:
        async with await Api.connect(str(plane.kubeconfig)) as api:
            if step == "answers":
                return await hooks_answer(api)
            await uninstall(api, manifests(InstallMode.ENFORCE), lambda _line: None, with_policies=True)
            return True

    try:
        plane.kubectl(*apply[1:-1], folder, "--force-conflicts")
        server.start()
        assert "privileged must be false in a pod that touches GPUs" in refusal(plane, namespace)
    finally:
        asyncio.run(ask("uninstall"))
        server.kill()
    hooks = [one for one in manifests(InstallMode.ENFORCE) if one["kind"] in HOOKS]
    assert not [one for one in hooks if plane.api.exists(path_of(one))]
    assert refusal(plane, namespace) == ""
