"""Rightslice installed by the words of docs/install.md: its hooks in a plane, its server a process of this machine."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.conftest import ROOT
from tests.house.checkout import read
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.errors import ApiError
from webhook.installing.facts import BOTH_ANSWERED, all_have_ca_bundle, probe_webhooks
from webhook.installing.removal import uninstall_manifests
from webhook.kube.api import KubeClient
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.well_known import SYSTEM_NAMESPACE

PAGE = read("docs/install.md").partition("## Out of cluster")[2].partition("\n## ")[0]

POLICIES = ROOT / "policies"
EVERYTHING = shipped_manifests(InstallMode.ENFORCE)


class Installed:
    """What was installed.

    Attributes:
        plane: Where.
        port: Where the API server calls.
        replica: The server.
    """

    def __init__(self, plane: Plane, folder: Path, *flags: str, policies: Path = POLICIES) -> None:
        self.plane, self.port, self._folder, self._policies = plane, free_port(), folder, policies
        self.apply, self._serve = commands()
        self.replica = self.another("rightslice", self.port, *flags)

    def another(self, name: str, port: int, *flags: str) -> Process:
        """A server as the page says, on a port of this machine."""
        words = [word.replace("0.0.0.0:8443", f"127.0.0.1:{port}") for word in self._serve[1:]]
        words[words.index("policies")] = str(self._policies)
        own = [f"--kubeconfig={self.plane.kubeconfig}", "--log-level=debug", *flags]
        command = [sys.executable, "-m", "webhook.cli", *words, *own]
        return Process(name, command, self._folder / f"{name}.log", lambda: is_ready(port))

    def page(self, path: str) -> str:
        """What a path of the server answers."""
        return page(self.port, path)

    def samples(self, metric: str) -> list[float]:
        """The values of the metrics whose name and labels, after "rightslice_", match an expression
        without groups."""
        lines = re.findall(rf"^rightslice_{metric} (\S+)$", self.page("/metrics"), re.MULTILINE)
        return [float(value) for value in lines]

    def log(self) -> list[Json]:
        """What the server logged, line by line."""
        text = self.replica.log.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def answers(self) -> bool:
        """Do both webhooks answer a dry-run pod?"""
        return asyncio.run(self._answers())

    async def _answers(self) -> bool:
        async with await KubeClient.connect(str(self.plane.kubeconfig)) as api:
            try:
                return await hooks_answer(api)
            except ApiError:
                return False

    async def uninstall(self) -> None:
        """Take everything out again."""
        async with await KubeClient.connect(str(self.plane.kubeconfig)) as api:
            await uninstall_manifests(api, EVERYTHING, lambda _line: None, with_policies=True, seconds=120)


async def hooks_answer(api: KubeClient) -> bool:
    """Do both webhooks answer a dry-run pod?"""
    return await all_have_ca_bundle(api) and BOTH_ANSWERED in await probe_webhooks(api)


def commands() -> list[list[str]]:
    """The commands of the page, in order, each as its words."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def page(port: int, path: str) -> str:
    """What a path of a server on this machine answers. Probes do not look at the certificate.

    Raises:
        OSError: nobody answers, or not with a 2xx.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=30) as answer:
        return str(answer.read().decode())


def is_ready(port: int) -> bool:
    """Is the server there ready?"""
    return bool(page(port, "/readyz"))


@contextmanager
def installed(plane: Plane, folder: Path, *flags: str, policies: Path = POLICIES) -> Iterator[Installed]:
    """Inside, it is installed and answers; afterwards nothing of it is left. `flags` are more of the server's."""
    found = Installed(plane, folder, *flags, policies=policies)
    overlay = copy_of(ROOT / "manifests", folder / "manifests") / "overlays" / "out-of-cluster"
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    address = overlay / "address.yaml"
    address.write_text(address.read_text().replace("127.0.0.1:8443", f"127.0.0.1:{found.port}"))
    try:
        plane.kubectl(*found.apply[1:-1], str(overlay), "--force-conflicts")
        found.replica.start()
        eventually(found.answers)
        yield found
    finally:
        found.replica.kill()
        asyncio.run(found.uninstall())


def reachable(one: Json, port: int) -> Json:
    """The same manifests where the API server reaches services of this machine only."""
    if one["kind"] == "Service":
        return {**one, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    if one["kind"] not in WEBHOOK_KINDS:
        return one
    webhooks = [
        {**hook, "clientConfig": {"service": {**hook["clientConfig"]["service"], "port": port}}}
        for hook in one["webhooks"]
    ]
    return {**one, "webhooks": webhooks}


def copy_of(folder: Path, to: Path) -> Path:
    """Copy the manifests of a folder."""
    for file in folder.rglob("*.yaml"):
        target = to / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return to
