"""The commands that an installation of the wheel brings, in an environment of their own, as pipx makes one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.controlplane.build import control_plane, wanted_version
from webhook import __version__


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, over the dependencies that are installed for the tests; return the folder of its commands."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = ["--python", str(environment), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *install], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def call(*command: str | Path, folder: str | Path = ".", **variables: str) -> str:
    """Return what a command prints that must succeed."""
    environment = {"PATH": os.defpath, "HOME": "/nonexistent"} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_commands_run(commands: Path) -> None:
    assert call(commands / "rightslice", "--version") == f"rightslice {__version__}\n"
    assert call(commands / "kubectl-rightslice", "check", "--help").startswith("Usage: kubectl rightslice check")


@pytest.mark.parametrize("place", [".", ".."], ids=["in a folder of the installation", "above the installation"])
def test_shipped_files_have_the_names_of_a_checkout(commands: Path, place: str) -> None:
    folder = commands / place
    policies = call(commands / "rightslice", "policy", "list", "--no-headers", folder=folder)
    audited = call(commands / "rightslice", "audit", "--cluster", "demo", folder=folder)
    shown = call(commands / "rightslice", "demo", folder=folder)

    assert {line.split()[-1].partition("/")[0] for line in policies.splitlines()} == {"policies"}
    assert "\nexamples/cluster/workloads.yaml:" in audited
    assert "(right-sizing, policies/right-sizing.yaml:" in audited
    assert "changed  examples/pods/01-notebook-8gb.yaml:2:1" in shown


COMPLETED = {
    "a command": (["che"], {"check"}),
    "a flag": (["check", "--kube"], {"--kubeconfig"}),
    "values of a flag": (["audit", "--fail-on", ""], {"warn", "never"}),
    "a nested command": (["policy", "li"], {"lint"}),
}


@pytest.mark.parametrize(("words", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_kubectl_gets_completions(commands: Path, words: list[str], expected: set[str]) -> None:
    assert set(call(commands / "kubectl_complete-rightslice", *words).split()) >= expected


@pytest.mark.cluster
def test_kubectl_itself_completes_a_command_of_the_plugin(commands: Path) -> None:
    kubectl = control_plane(wanted_version())["kubectl"]

    printed = call(kubectl, "__complete", "rightslice", "che", PATH=f"{commands}{os.pathsep}{os.defpath}")

    assert printed.splitlines()[0] == "check"
