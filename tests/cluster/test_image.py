"""The image of the Dockerfile, built in a folder: it runs as an unprivileged user with a read-only root.

No container engine is needed: the same commands install from the same lock into the same layout (only the
bytecode of libraries is left out, for speed), and the kernel gives a mount namespace with a root that is read-only,
and a user without any rights.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.polling import COMMAND_SECONDS
from tests.cluster.processes import Process, free_port, mount_namespace
from tests.conftest import ROOT
from tests.house.checkout import read_checkout_file
from tests.server.site import encoded, review

USER = "65532"

SANDBOX_SCRIPT = """\
set -eu
mount --rbind / {root}
mount --bind {python} {layout}/python
mount --rbind {layout} {root}/mnt
mount -o remount,bind,ro {root}/mnt
mount -o remount,bind,ro {root}
mount -t tmpfs -o size=16m tmpfs {root}/tmp
exec chroot {root} {drop} env -i {variables} {command}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the Dockerfile creates, and a mount point for an interpreter that any user may read."""
    folder = tmp_path_factory.mktemp("image")
    target = folder / "opt" / "rightslice"
    (folder / "python").mkdir()
    folder.with_name("root").mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", str(target)]
    locked = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run([*pip, *locked, "--no-compile", "-r", "requirements/run.txt"])
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")])
    (wheel,) = (folder / "dist").glob("*.whl")
    run([*pip, "--no-index", "--no-deps", str(wheel)])
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def run(command: list[str]) -> None:
    """Run a command in the checkout."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def sandboxed_entrypoint(layout: Path, *arguments: str) -> list[str]:
    """Return a command that runs the image's entrypoint as its user, with a read-only root."""
    python = f"/mnt/python/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    command = " ".join([python, *entrypoint()[1:], *arguments])
    return sandboxed_command(layout, command)


def sandboxed_command(layout: Path, command: str) -> list[str]:
    """Return a command that runs another command in the same sandbox."""
    is_root = os.geteuid() == 0
    drop = f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
    variables = "PYTHONPATH=/mnt/opt/rightslice PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH=/mnt/python/lib"
    script = SANDBOX_SCRIPT.format(
        root=layout.with_name("root"),
        python=sys.base_prefix,
        layout=layout,
        variables=variables,
        command=command,
        drop=drop if is_root else "setpriv --no-new-privs",
    )
    return [*mount_namespace(), "sh", "-c", script]


def entrypoint() -> list[str]:
    """Return the image's entrypoint from the Dockerfile."""
    found = re.search(r"^ENTRYPOINT (.*)$", read_checkout_file("Dockerfile"), re.MULTILINE)
    assert found is not None
    arguments: list[str] = json.loads(found[1])
    return arguments


def run_captured(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and capture its output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)


def test_the_version_is_printed(layout: Path) -> None:
    done = run_captured(sandboxed_entrypoint(layout, "version"))

    assert done.returncode == 0, done.stderr
    assert "0.1.0" in done.stdout


def test_the_root_is_read_only(layout: Path) -> None:
    done = run_captured(sandboxed_command(layout, "sh -c 'id -u; touch /mnt/opt/rightslice/x /x /var/x'"))

    assert done.stderr.count("Read-only file system") + done.stderr.count("Permission denied") == 3, done.stderr
    assert "Read-only file system" in done.stderr
    if os.geteuid() == 0:
        assert done.stdout.split() == [USER]


def test_the_image_installs_its_bundled_manifests(layout: Path) -> None:
    done = run_captured(sandboxed_entrypoint(layout, "install", "--mode", "enforce", "-o", "yaml"))

    assert done.returncode == 0, done.stderr
    assert "kind: ValidatingAdmissionPolicyBinding" in done.stdout


def test_the_image_serves_and_stops_on_sigterm(layout: Path, tmp_path: Path) -> None:
    port = free_port()
    policies = "/mnt/opt/rightslice/webhook/shipped/policies"
    flags = [f"--policies={policies}", "--cluster=demo", "--self-signed", f"--listen=127.0.0.1:{port}"]
    server = Process(
        "webhook", sandboxed_entrypoint(layout, "serve", "webhook", *flags), tmp_path / "log", lambda: ready(port)
    )

    server.start()
    try:
        answer = post(port, "/validate", encoded(review()))
    finally:
        server.stop()

    assert answer["response"]["uid"] == "u-1"
    assert "Traceback" not in (tmp_path / "log").read_text()


def ready(port: int) -> bool:
    """Return whether the server is ready."""
    return curl(port, "/readyz").strip() == "ok"


def post(port: int, path: str, body: bytes) -> dict[str, dict[str, str]]:
    """Return the response to a review."""
    answer: dict[str, dict[str, str]] = json.loads(curl(port, path, body))
    return answer


def curl(port: int, path: str, body: bytes | None = None) -> str:
    """Send a request to a server with a self-signed certificate."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"} if body else {})
        return connection.getresponse().read().decode()
    finally:
        connection.close()
