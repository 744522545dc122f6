"""The file for machines without Python, in a root with a shell, tar and gzip, and nothing else."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.cluster.processes import mount_namespace
from tests.conftest import ROOT
from tests.controlplane.build import krew_program
from tests.cpu_timer import cpu_seconds_of_processes, slowness
from tests.house.checkout import read_checkout_file
from tests.release.conftest import SECONDS
from tests.release.krew import ARCHIVE, COMPLETION_STEP, MANIFEST, write_krew_files
from tests.release.runtime import LOADER
from tests.release.standalone import PARTS
from webhook import __version__

TOOLS = ("sh", "head", "tail", "tar", "gzip", "mktemp", "mkdir", "mv", "rm")
POD = ROOT / "examples" / "pods" / "01-notebook-8gb.yaml"
STARTS = {
    "--version": 0.25,
    "check /home/pod.yaml": 0.6,
    "check /home/pod.yaml --cluster demo": 1.0,
}
"""The most seconds of CPU time by arguments, about twice what docs/install.md states."""

Runner = Callable[..., subprocess.CompletedProcess[str]]
Krew = Callable[[bytes, bytes], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def bare(standalone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root folder with the tools, the libraries that they load, the file under its names, and a pod."""
    root = tmp_path_factory.mktemp("bare")
    for folder in ("bin", "dev", "home", "tmp"):
        (root / folder).mkdir()
    (root / "dev" / "null").touch()
    for tool in (Path(str(shutil.which(name))).resolve() for name in TOOLS):
        copy_with_libraries(tool, root)
    (root / "bin" / "sh").hardlink_to(root / "bin" / Path("/bin/sh").resolve().name)
    shutil.copy2(standalone, root / "bin" / "rightslice")
    (root / "bin" / "kubectl-rightslice").symlink_to("rightslice")
    shutil.copy(POD, root / "home" / "pod.yaml")
    return root


def copy_with_libraries(tool: Path, root: Path) -> None:
    """Copy a program of this machine and the libraries that it loads."""
    shutil.copy2(tool, root / "bin" / tool.name)
    listed = subprocess.run(["ldd", str(tool)], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", listed):
        target = root / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)


@pytest.fixture(scope="module")
def run(bare: Path) -> Runner:
    """Return a function that runs a command in that root."""
    chroot = str(shutil.which("chroot"))

    def run_bare(*command: str, mounting: str = ":", **variables: str) -> subprocess.CompletedProcess[str]:
        settings = {"PATH": "/bin", "HOME": "/home"} | variables
        words = [*mount_namespace(), "sh", "-ec", f'{mounting}; exec "$@"', "sh", chroot, str(bare), *command]
        return subprocess.run(words, env=settings, capture_output=True, text=True, check=False)

    return run_bare


def test_the_first_starts_unpack_once_and_later_ones_take_the_folder(run: Runner, bare: Path) -> None:
    with ThreadPoolExecutor() as pool:
        first = list(pool.map(lambda _: run("rightslice", "--version", HOME="/tmp"), range(3)))

    assert [(done.stdout, done.stderr) for done in first] == [(f"rightslice {__version__}\n", "")] * 3
    assert len(list((bare / "tmp" / ".cache" / "rightslice").iterdir())) == 1


def test_folders_exist_before_files_are_unpacked_at_the_same_time(standalone: Path) -> None:
    content = standalone.read_bytes()
    places = re.findall(rb"^  unpack (\d+) +(\d+)", content, flags=re.MULTILINE)
    folders, *others = (members(content[int(start) - 1 :][: int(length)]) for start, length in places)

    assert all(each.isdir() for each in folders)
    assert len(others) > 1
    parents = {str(Path(each.name).parent) for part in others for each in part}
    assert parents <= {".", *(each.name for each in folders)}
    assert not any(each.isdir() for part in others for each in part)


def members(part: bytes) -> list[tarfile.TarInfo]:
    """Return what an archive contains."""
    with tarfile.open(fileobj=io.BytesIO(part)) as archive:
        return archive.getmembers()


def test_a_damaged_file_leaves_nothing_and_says_what_to_do(run: Runner, bare: Path, standalone: Path) -> None:
    damaged = standalone.read_bytes()
    (bare / "bin" / "damaged").write_bytes(damaged[: len(damaged) - 1_000_000])
    (bare / "bin" / "damaged").chmod(0o755)

    done = run("damaged", "--version", HOME="/tmp/damaged")

    assert done.returncode == 2
    message = "error: /tmp/damaged/.cache/rightslice: a part could not be unpacked. Free 250 MB there, or download "
    assert message in done.stderr
    assert list((bare / "tmp" / "damaged" / ".cache" / "rightslice").iterdir()) == []


REFUSED = {
    "too small": ("size=50m", "{}: a part could not be unpacked. Free 250 MB there, or download /bin/rightslice again"),
    "without programs": (
        "noexec",
        f"{{}}/{__version__}-*: must be on a file system that is mounted without noexec, "
        "found that usr/bin/python3 cannot be run. Set XDG_CACHE_HOME to a folder on another",
    ),
}


@pytest.mark.parametrize(("option", "message"), REFUSED.values(), ids=REFUSED)
def test_a_file_system_that_cannot_hold_it_is_named_in_a_few_lines(
    run: Runner, bare: Path, option: str, message: str
) -> None:
    (bare / "tmp" / "mounted").mkdir(exist_ok=True)
    mounting = f"mount -t tmpfs -o {option} tmpfs {bare}/tmp/mounted"

    done = run("rightslice", "--version", mounting=mounting, HOME="/tmp/mounted")

    assert (done.returncode, done.stdout) == (2, "")
    *causes, last = done.stderr.splitlines()
    assert fnmatch(last, f"error: {message}".format("/tmp/mounted/.cache/rightslice"))
    assert len(causes) <= PARTS


@pytest.mark.parametrize("missing", ["usr/bin/python3", LOADER, "pydantic"])
def test_an_unpacked_folder_with_a_part_missing_is_named(run: Runner, bare: Path, missing: str) -> None:
    run("rightslice", "--version", HOME="/tmp")
    (folder,) = (bare / "tmp" / ".cache" / "rightslice").iterdir()
    (part,) = [folder / missing] if "/" in missing else folder.glob(f"**/*-packages/{missing}")
    part.rename(folder / "lost")
    done = run("rightslice", "check", "/home/pod.yaml", HOME="/tmp")
    (folder / "lost").rename(part)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: /{folder.relative_to(bare)}: must be as it was unpacked, found")
    assert done.stderr.endswith("Remove the folder: the next start unpacks it again\n")
    assert missing in done.stderr


@pytest.mark.parametrize(("arguments", "seconds"), STARTS.items(), ids=STARTS)
def test_a_start_takes_about_the_cpu_time_that_the_page_states(run: Runner, arguments: str, seconds: float) -> None:
    command = ("rightslice", *arguments.split())
    run(*command)

    assert min(cpu_seconds_of_processes(lambda: run(*command)) / slowness() for _ in range(3)) < seconds


def test_a_manifest_is_checked_against_the_shipped_policies_and_the_shipped_cluster(run: Runner) -> None:
    done = run("rightslice", "check", "/home/pod.yaml", "--cluster", "demo", "-o", "json")

    assert "nvidia.com/mig-1g.10gb" in done.stdout
    assert json.loads(done.stdout)


def test_processes_that_it_starts_have_its_python(run: Runner) -> None:
    done = run("rightslice", "demo")

    assert done.returncode == 0, done.stderr
    assert "gets 0.14" in done.stdout


def test_layouts_are_solved(run: Runner) -> None:
    done = run("rightslice", "layout", "--cluster", "demo")

    assert done.returncode == 0, done.stderr
    assert "is not installed" not in done.stderr


def test_a_kubeconfig_with_a_plugin_is_read(run: Runner, bare: Path) -> None:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
    plugin = {"apiVersion": credential["apiVersion"], "command": "/bin/sh", "interactiveMode": "Never"}
    user = {"exec": plugin | {"args": ["-c", f"printf %s '{json.dumps(credential)}'"]}}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }  # fmt: skip
    (bare / "home" / "config").write_text(json.dumps(config))

    done = run("rightslice", "audit", "--cluster", "live", "--kubeconfig", "/home/config")

    assert done.returncode == 3
    assert "127.0.0.1:1" in done.stderr
    assert "connection refused" in done.stderr


def test_a_plugin_of_kubectl_says_its_name(run: Runner) -> None:
    assert "Usage: kubectl rightslice check" in run("kubectl-rightslice", "check", "--help").stdout


def test_a_machine_without_a_home_is_told_what_to_set(run: Runner) -> None:
    done = run("sh", "-c", "unset HOME XDG_CACHE_HOME; rightslice --version")

    assert done.returncode == 2
    assert done.stderr == "error: HOME: must be set, found none. Set HOME, or XDG_CACHE_HOME to a folder\n"


@pytest.mark.parametrize("folder", ["/bin/sh", "/dev/null/cache"])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_set(folder: str) -> None:
    script = ROOT / "tests" / "release" / "standalone.sh"
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": folder}
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == (
        f"error: {folder}/rightslice: must be a folder that can be created and written. "
        "Set XDG_CACHE_HOME to another folder\n"
    )


@pytest.fixture
def krew(tmp_path: Path) -> Krew:
    """Return a function that lets krew install an archive by the manifest of another program."""

    def install(described: bytes, archived: bytes) -> subprocess.CompletedProcess[str]:
        for folder, program in (("described", described), ("archived", archived)):
            (tmp_path / folder).mkdir()
            write_krew_files(tmp_path / folder, program, SECONDS)
        manifest, archive = tmp_path / "described" / MANIFEST, tmp_path / "archived" / ARCHIVE
        return subprocess.run(
            [krew_program(), "install", "--manifest", manifest, "--archive", archive],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return install


def test_krew_installs_it_from_the_archive_and_the_manifest_of_the_release(krew: Krew, tmp_path: Path) -> None:
    program = b"#!/bin/sh\necho $0 $*\n"
    plugin = tmp_path / ".krew" / "bin" / "kubectl-rightslice"

    done = krew(program, program)

    assert done.returncode == 0, done.stderr
    assert subprocess.check_output([plugin, "check"], text=True) == f"{plugin} check\n"


def test_kubectl_completes_the_plugin_of_krew_after_the_step_that_the_page_shows(krew: Krew, tmp_path: Path) -> None:
    program = b"#!/bin/sh\necho $0 $*\n"
    completer = tmp_path / ".krew" / "bin" / "kubectl_complete-rightslice"

    assert COMPLETION_STEP in krew(program, program).stderr
    subprocess.run(["sh", "-c", COMPLETION_STEP], env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, check=True)

    assert COMPLETION_STEP in read_checkout_file("docs/install.md")
    assert subprocess.check_output([completer, "che"], text=True) == f"{completer} che\n"


def test_krew_refuses_another_archive(krew: Krew) -> None:
    done = krew(b"one", b"two")

    assert done.returncode != 0
    assert "checksum" in done.stderr
