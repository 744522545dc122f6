"""The commands of docs/first-hour.md, in their order, on a real control plane: with Helm, and with the command.

The plane runs no containers: a local replica does what the Deployment says, with another address.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_page_commands import is_shown
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import with_local_address
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_chart_release import copy_chart
from tests.cluster.test_install import write_account_kubeconfig
from tests.conftest import ROOT
from tests.controlplane.build import control_plane, helm_program, wanted_version
from tests.house.shown_blocks import FIRST_HOUR, ShownCommand, commands_of, shown_blocks
from tests.server.managed_site import read_readyz
from webhook import __version__
from webhook.documents.reader import read_documents
from webhook.manifests.objects import DEPLOYMENT_PATH
from webhook.report.serialization import yaml_text

BUILDS = ("make binary", "install -m")
"""Commands that tests/release/test_standalone.py runs: here the command is this checkout's."""


def page_commands(installer: str) -> list[ShownCommand]:
    """Return the commands of the page for a reader who installs with Helm, or with the command."""
    others = ("rightslice install", "rightslice uninstall") if installer == "helm" else ("helm ",)
    commands = commands_of([block for block in shown_blocks() if block.page == FIRST_HOUR])
    return [each for each in commands if not each.text.startswith((*BUILDS, *others))]


class LocalReplica:
    """A thread that runs the webhook as the Deployment says, and starts it again when its settings change."""

    def __init__(self, plane: Plane, folder: Path, port: int) -> None:
        self._plane, self._folder, self.port = plane, folder, port
        self._settings: list[Json] | None = None
        self._process: Process | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> LocalReplica:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._process:
            self._process.kill()

    def settle(self) -> None:
        """Wait until the replica runs with the settings of the Deployment, if there is one."""
        eventually(lambda: self._settings == self._wanted() and (not self._settings or self._is_ready()))

    def _is_ready(self) -> bool:
        try:
            return read_readyz(self.port)[0] == 200
        except OSError:
            return False

    def _follow(self) -> None:
        while not self._ended.wait(0.2):
            wanted = self._wanted()
            if wanted == self._settings:
                continue
            if self._process:
                self._process.stop()
            self._process = self._start(wanted) if wanted else None
            self._settings = wanted

    def _wanted(self) -> list[Json]:
        """Return the environment of the container; empty without a Deployment."""
        try:
            template = self._plane.api.get(DEPLOYMENT_PATH)["spec"]["template"]
        except RefusedError:
            return []
        environment: list[Json] = template["spec"]["containers"][0]["env"]
        return environment

    def _start(self, environment: list[Json]) -> Process:
        write_account_kubeconfig(self._plane)
        [container] = self._plane.api.get(DEPLOYMENT_PATH)["spec"]["template"]["spec"]["containers"]
        arguments = [word for word in container["args"] if not word.startswith(("--listen=", "--policies="))]
        local = [f"--listen=127.0.0.1:{self.port}", f"--kubeconfig={self._plane.folder / 'account'}"]
        variables = [f"{each['name']}={each['value']}" for each in environment if "value" in each]
        policies = f"--policies={ROOT / 'policies/guard.yaml'}"
        command = ["env", *variables, sys.executable, "-m", "webhook.cli", *arguments, *local, policies]
        process = Process("rightslice", command, self._folder / "rightslice.log")
        process.launch()
        return process


def make_checkout(folder: Path, port: int) -> Path:
    """Make a checkout whose webhook is called at a local port, with `rightslice` and `helm` in its `bin`."""
    for name in ("policies", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "webhook", folder / "webhook", ignore=shutil.ignore_patterns("__pycache__"))
    copy_chart(folder / "charts" / "rightslice", port, __version__)
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    for name in ("install.yaml", "install-enforce.yaml"):
        documents = read_documents((ROOT / "manifests" / name).read_bytes(), name, aliases=True)
        local = [yaml_text(with_local_address(document.data, port)) for document in documents]
        (folder / "manifests" / name).write_text("---\n".join(local), encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "helm").symlink_to(helm_program())
    program = folder / "bin" / "rightslice"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m webhook.cli "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A new control plane: `doctor` also reports calls of other tests that failed since the API server started."""
    with Plane(control_plane(wanted_version()), tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("installer", ["helm", "command"])
def test_the_commands_of_the_first_hour(plane: Plane, installer: str, tmp_path: Path) -> None:
    port = free_port()
    checkout = make_checkout(tmp_path, port)
    variables = {**plane.kubectl_environment(), "PYTHONPATH": str(checkout), "COLUMNS": "200"}
    variables["PATH"] = f"{checkout / 'bin'}{os.pathsep}{variables['PATH']}"
    with LocalReplica(plane, tmp_path, port) as replica:
        for command in page_commands(installer):
            ran = subprocess.run(
                ["sh", "-c", command.text],
                cwd=checkout,
                env=variables,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            assert ran.returncode == 0, f"{command.text}\n{ran.stderr}{ran.stdout}"
            assert is_shown(command, ran.stderr + ran.stdout), f"{command.text}\n{ran.stderr}{ran.stdout}"
            replica.settle()
