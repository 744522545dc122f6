"""Rightslice installed as in docs/install.md: with its webhooks in a plane, and its server as a local process."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.conftest import ROOT
from tests.house.checkout import read_checkout_file
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.errors import ApiError
from webhook.installing.apply import uninstall_manifests
from webhook.installing.facts import BOTH_ANSWERED, all_have_ca_bundle, probe_webhooks
from webhook.kube.api import KubeClient
from webhook.manifests.objects import WEBHOOK_KINDS, api_path
from webhook.manifests.sent_resources import with_gpu_resources
from webhook.well_known import SYSTEM_NAMESPACE

PAGE = read_checkout_file("docs/install.md").partition("## Out of cluster")[2].partition("\n## ")[0]

POLICIES = ROOT / "policies"
ADMISSION_API = "admissionregistration.k8s.io/v1"
PATIENT_TIMEOUT = 30
"""Seconds: the longest timeout of a webhook, so that no call fails because the machine is busy."""

ALL_MANIFESTS = shipped_manifests(InstallMode.ENFORCE)


class Installation:
    """A running installation.

    Attributes:
        plane: The control plane.
        port: The port that the API server calls.
        replica: The server process.
        checkout: The version of its code and manifests.
    """

    def __init__(
        self, plane: Plane, folder: Path, *flags: str, policies: Path = POLICIES, checkout: Path = ROOT
    ) -> None:
        self.plane, self.port, self.checkout = plane, free_port(), checkout
        self._folder, self._policies = folder, policies
        self._apply, self._serve = documented_commands()
        self.replica = self.start_server("rightslice", self.port, *flags)

    def apply_manifests(self) -> None:
        """Apply the manifests as documented, with our address, and timeouts that a busy machine does not exceed."""
        manifests = copy_manifests(self.checkout / "manifests", self._folder / f"manifests-{self.checkout.name}")
        overlay = manifests / "overlays" / "out-of-cluster"
        address = overlay / "address.yaml"
        address.write_text(address.read_text().replace("127.0.0.1:8443", f"127.0.0.1:{self.port}"))
        webhooks = manifests / "admission" / "webhooks.yaml"
        webhooks.write_text(re.sub(r"(timeoutSeconds:) \d+", rf"\1 {PATIENT_TIMEOUT}", webhooks.read_text()))
        self.plane.kubectl(*self._apply[1:-1], str(overlay), "--force-conflicts")

    def start_server(self, name: str, port: int, *flags: str) -> Process:
        """Start another server with the documented flags, on a port of this machine."""
        arguments = [argument.replace("0.0.0.0:8443", f"127.0.0.1:{port}") for argument in self._serve[1:]]
        arguments[arguments.index("policies")] = str(self._policies)
        extra = [f"--kubeconfig={self.plane.kubeconfig}", "--log-level=debug", *flags]
        code = ["env", f"--chdir={self.checkout}", f"PYTHONPATH={self.checkout}"]
        command = [*code, sys.executable, "-m", "webhook.cli", *arguments, *extra]
        return Process(name, command, self._folder / f"{name}.log", lambda: is_ready(port))

    def fetch_page(self, path: str) -> str:
        """Return the server's response to a path."""
        return fetch_page(self.port, path)

    def metric_values(self, metric: str) -> list[float]:
        """Return the values of metrics whose name and labels, after "rightslice_", match a regular expression
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
            await uninstall_manifests(api, ALL_MANIFESTS, lambda _line: None, with_policies=True, seconds=120)


async def dry_run_succeeds(api: KubeClient) -> bool:
    """Return whether both webhooks answer a dry-run pod."""
    return await all_have_ca_bundle(api) and BOTH_ANSWERED in await probe_webhooks(api)


def documented_commands() -> list[list[str]]:
    """Return the commands of the page, in order, each as a list of arguments."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def fetch_page(port: int, path: str) -> str:
    """Return the response of a local server to a path. Like a probe, it does not verify the certificate.

    Raises:
        OSError: there is no response, or not a 2xx.
    """
    url = f"https://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, context=unverified_context(), timeout=30) as response:
        return str(response.read().decode())


def unverified_context() -> ssl.SSLContext:
    """Return a context that verifies no certificate. It loads no authorities, which would take 30 ms for each poll."""
    return ssl._create_unverified_context()


def is_ready(port: int) -> bool:
    """Return whether the server at this port is ready."""
    return bool(fetch_page(port, "/readyz"))


@contextmanager
def webhook_timeout(plane: Plane, seconds: int) -> Iterator[None]:
    """Let the API server wait so long for each webhook within the block."""
    before = patch_webhooks(plane, lambda webhook: {**webhook, "timeoutSeconds": seconds})
    previous = {webhook["name"]: webhook["timeoutSeconds"] for webhook in before}
    try:
        yield
    finally:
        patch_webhooks(plane, lambda webhook: {**webhook, "timeoutSeconds": previous[webhook["name"]]})


def patch_webhooks(plane: Plane, change: Callable[[Json], Json]) -> list[Json]:
    """Replace every webhook, and return those of before."""
    before: list[Json] = []
    for kind in WEBHOOK_KINDS:
        path = api_path({"apiVersion": ADMISSION_API, "kind": kind, "metadata": {"name": "rightslice"}})
        webhooks: list[Json] = plane.api.get(path)["webhooks"]
        plane.api.patch(path, {"webhooks": [change(webhook) for webhook in webhooks]})
        before += webhooks
    return before


@contextmanager
def pods_sent_by(plane: Plane, *names: str) -> Iterator[None]:
    """Let the webhooks also get pods with these resource names for the block."""

    def add_names(webhook: Json) -> Json:
        [changed] = with_gpu_resources([{"kind": WEBHOOK_KINDS[0], "webhooks": [webhook]}], names)
        return dict(changed["webhooks"][0])

    before = iter(patch_webhooks(plane, add_names))
    try:
        yield
    finally:
        patch_webhooks(plane, lambda _: next(before))


@contextmanager
def install_from_page(
    plane: Plane,
    folder: Path,
    *flags: str,
    policies: Path = POLICIES,
    checkout: Path = ROOT,
) -> Iterator[Installation]:
    """Install for the block, and remove everything afterwards. `flags` are added to the server's."""
    installation = Installation(plane, folder, *flags, policies=policies, checkout=checkout)
    plane.wait_until_gone(SYSTEM_NAMESPACE)
    try:
        installation.apply_manifests()
        installation.replica.start()
        eventually(installation.webhooks_answer)
        yield installation
    finally:
        installation.replica.kill()
        asyncio.run(installation.uninstall())


def rightslice(plane: Plane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the admin of the plane."""
    command = [sys.executable, "-m", "webhook.cli", *arguments, f"--kubeconfig={plane.kubeconfig}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)


def with_local_address(manifest: Json, port: int) -> Json:
    """Return a manifest changed so that the API server calls the webhook at a local port, and waits for it."""
    if manifest["kind"] == "Service":
        return {**manifest, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    if manifest["kind"] not in WEBHOOK_KINDS:
        return manifest
    webhooks = [
        {
            **hook,
            "clientConfig": {"service": {**hook["clientConfig"]["service"], "port": port}},
            "timeoutSeconds": PATIENT_TIMEOUT,
        }
        for hook in manifest["webhooks"]
    ]
    return {**manifest, "webhooks": webhooks}


def copy_manifests(folder: Path, destination: Path) -> Path:
    """Copy the manifests of a folder, and return the copy's folder."""
    for file in folder.rglob("*.yaml"):
        target = destination / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return destination
