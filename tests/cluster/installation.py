"""Rightslice installed as in docs/install.md: its webhooks in a plane, its server a process of this machine."""

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
from tests.house.checkout import read_checkout_file
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.errors import ApiError
from webhook.installing.facts import BOTH_ANSWERED, all_have_ca_bundle, probe_webhooks
from webhook.installing.removal import uninstall_manifests
from webhook.kube.api import KubeClient
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.well_known import SYSTEM_NAMESPACE

PAGE = read_checkout_file("docs/install.md").partition("## Out of cluster")[2].partition("\n## ")[0]

POLICIES = ROOT / "policies"
EVERYTHING = shipped_manifests(InstallMode.ENFORCE)


class Installation:
    """A running installation.

    Attributes:
        plane: Where.
        port: Where the API server calls.
        replica: The server.
    """

    def __init__(self, plane: Plane, folder: Path, *flags: str, policies: Path = POLICIES) -> None:
        self.plane, self.port, self._folder, self._policies = plane, free_port(), folder, policies
        self.apply, self._serve = documented_commands()
        self.replica = self.start_server("rightslice", self.port, *flags)

    def start_server(self, name: str, port: int, *flags: str) -> Process:
        """Start another server with the documented flags, on a port of this machine."""
        words = [word.replace("0.0.0.0:8443", f"127.0.0.1:{port}") for word in self._serve[1:]]
        words[words.index("policies")] = str(self._policies)
        own = [f"--kubeconfig={self.plane.kubeconfig}", "--log-level=debug", *flags]
        command = [sys.executable, "-m", "webhook.cli", *words, *own]
        return Process(name, command, self._folder / f"{name}.log", lambda: is_ready(port))

    def fetch_page(self, path: str) -> str:
        """Return the server's response to a path."""
        return fetch_page(self.port, path)

    def metric_values(self, metric: str) -> list[float]:
        """The values of the metrics whose name and labels, after "rightslice_", match an expression
        without groups."""
        lines = re.findall(rf"^rightslice_{metric} (\S+)$", self.fetch_page("/metrics"), re.MULTILINE)
        return [float(value) for value in lines]

    def log_entries(self) -> list[Json]:
        """Return the server's log entries."""
        text = self.replica.log.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def webhooks_answer(self) -> bool:
        """Return whether both webhooks answer a dry-run pod."""
        return asyncio.run(self._answers())

    async def _answers(self) -> bool:
        async with await KubeClient.connect(str(self.plane.kubeconfig)) as api:
            try:
                return await dry_run_succeeds(api)
            except ApiError:
                return False

    async def uninstall(self) -> None:
        """Remove the installation."""
        async with await KubeClient.connect(str(self.plane.kubeconfig)) as api:
            await uninstall_manifests(api, EVERYTHING, lambda _line: None, with_policies=True, seconds=120)


async def dry_run_succeeds(api: KubeClient) -> bool:
    """Return whether both webhooks answer a dry-run pod."""
    return await all_have_ca_bundle(api) and BOTH_ANSWERED in await probe_webhooks(api)


def documented_commands() -> list[list[str]]:
    """Return the commands of the page, in order, each as a list of arguments."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def fetch_page(port: int, path: str) -> str:
    """What a path of a server on this machine answers. Probes do not look at the certificate.

    Raises:
        OSError: nobody answers, or not with a 2xx.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=30) as answer:
        return str(answer.read().decode())


def is_ready(port: int) -> bool:
    """Return whether the server at this port is ready."""
    return bool(fetch_page(port, "/readyz"))


@contextmanager
def install_from_page(plane: Plane, folder: Path, *flags: str, policies: Path = POLICIES) -> Iterator[Installation]:
    """Install within the block, and remove everything afterwards. `flags` are added to the server's."""
    found = Installation(plane, folder, *flags, policies=policies)
    overlay = copy_of(ROOT / "manifests", folder / "manifests") / "overlays" / "out-of-cluster"
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    address = overlay / "address.yaml"
    address.write_text(address.read_text().replace("127.0.0.1:8443", f"127.0.0.1:{found.port}"))
    try:
        plane.kubectl(*found.apply[1:-1], str(overlay), "--force-conflicts")
        found.replica.start()
        eventually(found.webhooks_answer)
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
