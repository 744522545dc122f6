"""The image of `make image`: umoci reads it, and runc starts it as the manifests do.

That is with a read-only root, as its numbered user, without capabilities, in namespaces of its own but for the network.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.polling import COMMAND_SECONDS
from tests.cluster.processes import Process, free_port
from tests.controlplane.build import runc_program, umoci_program
from tests.house.checkout import read_checkout_file
from tests.release.conftest import SECONDS
from tests.release.image import SETTINGS, write_image
from tests.release.runtime import STATUS_FOLDER
from tests.release.sbom import read_system_packages
from tests.server.site import encoded, review
from webhook import __version__

TIME = datetime.fromtimestamp(SECONDS, UTC)
MAX_BYTES = 150_000_000
POLICIES = "/usr/lib/python3/dist-packages/webhook/shipped/policies"
FACTS = """\
import json, os
def is_writable(path):
    try:
        open(path + "/x", "w").close()
    except OSError as error:
        return error.strerror
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "gains privileges": status["NoNewPrivs"].strip() != "1",
    "writable": {path: is_writable(path) for path in ("/", "/usr/lib/python3/dist-packages", "/tmp")},
    "other programs": [name for name in os.listdir("/usr/bin") if not name.startswith("python3")],
    "shell": os.path.exists("/bin"),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
}))
"""

Container = Callable[..., list[str]]


@pytest.fixture(scope="module")
def image(runtime_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the image, and return the folder of its archive."""
    folder = tmp_path_factory.mktemp("image")
    assert write_image(runtime_tree, folder / "image.tar", TIME) == sum(size for _, size in layers(folder))
    return folder


def layers(folder: Path) -> list[tuple[str, int]]:
    """Return digest and size of each layer of an archive, after a check of every blob against its digest."""
    with tarfile.open(folder / "image.tar") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later need one
        archive.extractall(folder / "layout")
    for blob in (folder / "layout" / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    index = json.loads((folder / "layout" / "index.json").read_text())
    digest = index["manifests"][0]["digest"].removeprefix("sha256:")
    manifest = json.loads((folder / "layout" / "blobs" / "sha256" / digest).read_text())
    return [(layer["digest"], layer["size"]) for layer in manifest["layers"]]


@pytest.fixture(scope="module")
def bundle(image: Path) -> Path:
    """Unpack the image with umoci, which also writes a configuration from the image's settings; return the folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root to start a container")
    isolated = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"]
    if subprocess.run(isolated, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to create namespaces")
    unpack = [str(umoci_program()), "unpack", "--image", f"{image}/layout:{__version__}", str(image / "bundle")]
    done = subprocess.run(unpack, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return image / "bundle"


@pytest.fixture
def container(bundle: Path, tmp_path: Path) -> Iterator[Container]:
    """Return a function that returns the command that runs arguments of the image, or another command, in it."""
    runc = [str(runc_program()), "--root", str(tmp_path / "state")]
    name = f"{tmp_path.name}-{os.getpid()}"  # two processes of tests may not have the same name of a control group

    def command(*arguments: str, entrypoint: list[str] | None = None) -> list[str]:
        config = restricted(json.loads((bundle / "config.json").read_text()))
        config["root"]["path"] = str(bundle / "rootfs")
        config["process"]["args"] = [*(entrypoint or config["process"]["args"][:-1]), *arguments]
        (tmp_path / "config.json").write_text(json.dumps(config))
        return [*runc, "run", "--bundle", str(tmp_path), name]

    yield command
    subprocess.run([*runc, "delete", "--force", name], capture_output=True, check=False)


def restricted(config: dict[str, Any]) -> dict[str, Any]:
    """Return umoci's configuration with the securityContext and the volume of the Deployment, in the host's network."""
    process, linux = config["process"], config["linux"]
    process |= {"terminal": False, "capabilities": {name: [] for name in process["capabilities"]}}
    linux["namespaces"] = [each for each in linux["namespaces"] if each["type"] != "network"]
    memory = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["size=16m", "mode=1777"]}
    return config | {"root": config["root"] | {"readonly": True}, "mounts": [*config["mounts"], memory]}


def run_captured(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and capture its output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)


def test_the_layers_are_small(image: Path) -> None:
    sizes = [size for _, size in layers(image)]

    assert len(sizes) == 3
    assert sum(sizes) < MAX_BYTES


def test_equal_files_give_an_equal_image(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / name / "usr"
        folder.mkdir(parents=True, mode=0o755 if name == "first" else 0o700)
        (folder / "file").write_text("content")
        os.utime(folder / "file", (len(name), len(name)))
        write_image(tmp_path / name, tmp_path / f"{name}.tar", TIME)

    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


def test_it_has_the_settings_of_the_dockerfile() -> None:
    last_stage = read_checkout_file("Dockerfile").rsplit("\nFROM ", 1)[1]
    written = dict(re.findall(r"^(USER|WORKDIR|ENTRYPOINT|CMD|EXPOSE) (.*)$", last_stage, re.MULTILINE))

    assert written == {
        "USER": SETTINGS["User"],
        "WORKDIR": SETTINGS["WorkingDir"],
        "ENTRYPOINT": json.dumps(SETTINGS["Entrypoint"]),
        "CMD": json.dumps(SETTINGS["Cmd"]),
        "EXPOSE": "8443",
    }


def test_the_version_is_printed(container: Container) -> None:
    assert run_captured(container("--version")).stdout == f"rightslice {__version__}\n"


def test_a_container_has_no_rights_and_writes_only_to_its_volume(container: Container) -> None:
    done = run_captured(container("-c", FACTS, entrypoint=["/usr/bin/python3"]))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "user": [65532, 65532],
        "capabilities": [0, 0, 0, 0, 0],
        "gains privileges": False,
        "writable": {
            "/": "Read-only file system",
            "/usr/lib/python3/dist-packages": "Read-only file system",
            "/tmp": True,
        },
        "other programs": [],
        "shell": False,
        "processes": 1,
    }


@pytest.mark.parametrize("module", ["highspy", "pynvml", "grpc", "kubernetes.aio.config", "ssl", "zoneinfo"])
def test_modules_of_every_command_are_loaded(container: Container, module: str) -> None:
    done = run_captured(container("-c", f"import {module}", entrypoint=["/usr/bin/python3"]))

    assert (done.returncode, done.stderr) == (0, "")


def test_certificates_of_public_authorities_are_known(container: Container) -> None:
    count = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    done = run_captured(container("-c", count, entrypoint=["/usr/bin/python3"]))

    assert int(done.stdout) > 100


def test_the_image_installs_its_bundled_manifests(container: Container) -> None:
    done = run_captured(container("install", "--mode", "enforce", "-o", "yaml"))

    assert done.returncode == 0, done.stderr
    assert "kind: ValidatingAdmissionPolicyBinding" in done.stdout


def test_the_image_serves_and_stops_on_sigterm(container: Container, tmp_path: Path) -> None:
    port = free_port()
    flags = [f"--policies={POLICIES}", "--cluster=demo", "--self-signed", f"--listen=127.0.0.1:{port}"]
    server = Process("webhook", container("serve", "webhook", *flags), tmp_path / "log", lambda: is_ready(port))

    server.start()
    try:
        answer = json.loads(call(port, "/validate", encoded(review())))
    finally:
        server.stop()

    assert answer["response"]["uid"] == "u-1"
    assert "Traceback" not in (tmp_path / "log").read_text()


def is_ready(port: int) -> bool:
    """Return whether the server is ready."""
    return call(port, "/readyz").strip() == "ok"


def call(port: int, path: str, body: bytes | None = None) -> str:
    """Send a request to a server with a self-signed certificate."""
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    try:
        connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"} if body else {})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_bill_of_materials_lists_the_packages_of_the_image(runtime_tree: Path) -> None:
    system = {package.name: package for package in read_system_packages(runtime_tree)}

    assert {"libc6", "libstdc++6"} <= system.keys()
    assert set(system) == {file.name for file in (runtime_tree / STATUS_FOLDER).iterdir()}
    assert all(package.version[:1].isdigit() for package in system.values())
