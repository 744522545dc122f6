"""The commands with which the pages install, copy and verify the files of a release."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.controlplane.build import crane_program
from tests.controlplane.build_cache import cache, lock_folder, print_message
from tests.house.checkout import pages
from tests.house.shown_blocks import commands_by_page
from tests.release.__main__ import BINARY, CHECKSUMS, IMAGE, build_release
from tests.release.conftest import SECONDS
from tests.release.image import write_image
from tests.release.runtime import LIBRARIES, LOADER, LOCK, PackagesError, download_packages
from webhook import __version__

REGISTRY = "registry.example.com"
PYTHON_TOOLS = Path(sys.executable).parent


def shown_calls(program: str) -> list[str]:
    """Return the calls of a program in blocks and sentences of the pages."""
    call = re.compile(rf"(?:`|^\$ )({program} [^`\n]+)", re.MULTILINE)
    return sorted({found for page in pages() for found in call.findall(page.read_text(encoding="utf-8"))})


def page_commands(program: str) -> list[str]:
    """Return the commands of a program in blocks of the pages."""
    return [each.text for commands in commands_by_page().values() for each in commands if each.program == program]


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with its `bin` on the path."""
    settings = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.defpath}", "HOME": str(folder), **variables}
    call = ["sh", "-c", command]
    return subprocess.run(
        call, cwd=folder, env=settings, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )


def run_successfully(command: str, folder: Path, **variables: str) -> str:
    """Run a command that must succeed; return what it prints."""
    done = run(command, folder, **variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def release(standalone: Path, runtime_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a release and the image; return the folder with `dist`."""
    folder, time = tmp_path_factory.mktemp("release"), datetime.fromtimestamp(SECONDS, UTC)
    build_release(folder / "dist", time, standalone.read_bytes())
    write_image(runtime_tree, folder / "dist" / IMAGE, time)
    return folder


@pytest.fixture
def folder(release: Path, tmp_path: Path) -> Path:
    """Return a folder with that release and an empty `bin`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "dist").symlink_to(release / "dist")
    return tmp_path


def test_the_one_file_is_installed_under_its_three_names(folder: Path) -> None:
    for command in [*page_commands("install"), *page_commands("ln")]:
        run_successfully(command.replace("/usr/local/bin", str(folder / "bin")), folder)

    names = {path.name: path.resolve().name for path in (folder / "bin").iterdir()}
    assert names == dict.fromkeys(("rightslice", "kubectl-rightslice", "kubectl_complete-rightslice"), "rightslice")
    assert run_successfully("rightslice version", folder) == f"rightslice {__version__}\n"
    assert "--kubeconfig" in run_successfully("kubectl_complete-rightslice check --kube", folder)


def test_the_checksums_of_a_release_are_verified(folder: Path) -> None:
    [command] = page_commands("sha256sum")

    verified = run_successfully(f"cd dist && {command}", folder)

    listed = (folder / "dist" / CHECKSUMS).read_text(encoding="utf-8")
    assert verified.splitlines() == [f"{line.split()[1]}: OK" for line in listed.splitlines()]
    assert BINARY in verified


@pytest.fixture(scope="module")
def skopeo() -> Path:
    """Return a root folder with skopeo of Debian or Ubuntu and the libraries that it loads."""
    root = cache() / "skopeo"
    with lock_folder(root.parent, print_message):
        try:
            if not root.is_dir():
                extract_skopeo(root)
        except PackagesError as error:
            pytest.skip(f"needs packages of the apt sources: {error}")
    return root


def extract_skopeo(root: Path) -> None:
    """Extract the packages; an interrupted download leaves nothing that is used."""
    with tempfile.TemporaryDirectory(dir=root.parent) as temporary:
        for package in download_packages(Path(temporary), "skopeo"):
            subprocess.run(["dpkg-deb", "--extract", package, f"{temporary}/root"], check=True)
        Path(temporary, "root").rename(root)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Run a registry; return its host and port."""
    address = f"127.0.0.1:{free_port()}"
    serve = [str(crane_program()), "registry", "serve", "--address", address]
    process = Process("registry", serve, tmp_path / "registry.log")
    process.launch()
    eventually(lambda: fetch(f"http://{address}/v2/") is not None)
    yield address
    process.kill()


def fetch(url: str) -> bytes | None:
    """Return the content of an address; None if nothing listens yet."""
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
    try:
        with urllib.request.urlopen(request) as response:
            content: bytes = response.read()
    except ConnectionError:
        return None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            return None
        raise
    return content


def test_skopeo_copies_the_image_to_a_registry(folder: Path, skopeo: Path, registry: str) -> None:
    loader = [skopeo / LOADER, "--library-path", f"{skopeo / 'lib/x86_64-linux-gnu'}:{skopeo / LIBRARIES}"]
    words = shlex.join(map(str, [*loader, skopeo / "usr/bin/skopeo"]))
    (folder / "bin" / "skopeo").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "bin" / "skopeo").chmod(0o755)
    settings = folder / ".config" / "containers"
    settings.mkdir(parents=True)
    shutil.copy(skopeo / "etc/containers/policy.json", settings)
    (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{REGISTRY}"\ninsecure = true\n')
    proxy = f"http://{registry}"  # the registry answers for the name on the page

    for command in page_commands("skopeo"):
        run_successfully(command, folder, http_proxy=proxy, https_proxy=proxy)

    pushed = fetch(f"http://{registry}/v2/rightslice/manifests/{__version__}")
    assert pushed is not None
    with tarfile.open(folder / "dist" / IMAGE) as archive:
        index = archive.extractfile("index.json")
        assert index is not None
        assert json.load(index)["manifests"][0]["digest"] == f"sha256:{hashlib.sha256(pushed).hexdigest()}"


@pytest.fixture(scope="module")
def wheels() -> dict[str, str]:
    """Fetch the locked wheels, once; return the variables with which pip and pipx take packages from them alone."""
    folder = cache() / "wheels" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    with lock_folder(folder.parent, print_message):
        if not folder.is_dir():
            fetch_wheels(folder)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "UV_OFFLINE": "1", "UV_FIND_LINKS": str(folder)}


def fetch_wheels(folder: Path) -> None:
    """Fetch the wheels of the lock; an interrupted download leaves nothing that is used."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        locked = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(LOCK)]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", *locked]
        subprocess.run([*pip, "--dest", f"{temporary}/wheels"], check=True, capture_output=True)
        Path(temporary, "wheels").rename(folder)


IMPORTED = {"highspy": "highspy", "[tracing]": "opentelemetry.sdk", "[agent]": "pynvml, grpc"}
"""Modules that a command of pip must bring, by a part of the command."""


@pytest.mark.parametrize("command", shown_calls("pip"))
def test_pip_installs_what_a_page_says(folder: Path, wheels: dict[str, str], command: str) -> None:
    [modules] = [modules for part, modules in IMPORTED.items() if part in command]
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    path = f"{folder / 'environment' / 'bin'}{os.pathsep}{os.defpath}"

    run_successfully(command, folder, PATH=path, **wheels)

    run_successfully(f"python -c 'import {modules}'", folder, PATH=path)


@pytest.mark.parametrize("command", shown_calls("pipx"))
def test_pipx_installs_what_a_page_says(folder: Path, wheels: dict[str, str], command: str) -> None:
    [first, *_] = (each for each in shown_calls("pipx") if each.endswith(".whl"))
    environment = wheels | {"PIPX_HOME": f"{folder}/pipx", "PIPX_BIN_DIR": f"{folder}/bin"}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{PYTHON_TOOLS}{os.pathsep}{os.defpath}"
    if "inject" in command:
        run_successfully(first, folder, **environment)
        refused = run(f"{folder}/bin/rightslice layout --cluster demo", folder)
        assert refused.returncode == 2
        assert refused.stderr.endswith(f"Write {command}\n")

    run_successfully(command, folder, **environment)

    commands = {path.name for path in (folder / "bin").iterdir()}
    assert commands == {"rightslice", "kubectl-rightslice", "kubectl_complete-rightslice"}
    assert run_successfully(f"{folder}/bin/kubectl-rightslice version", folder) == f"rightslice {__version__}\n"
    if command != first:
        assert "cards" in run_successfully(f"{folder}/bin/rightslice layout --cluster demo", folder)
