"""The runtime: a root file system of a Python, Rightslice, the wheels of a lock file, and the libraries that they load.

The image is this folder, and the file for machines without Python unpacks it. Python and the C library are packages of
the Debian or Ubuntu that builds it, of the newest versions in its apt sources; apt checks their signatures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.conftest import ROOT
from webhook import __version__

LOCK = ROOT / "requirements" / "all.txt"

PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "ca-certificates")
"""Packages whose files are used, as are those of their dependencies."""

LOADER = "lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PYTHON = "usr/bin/python3"
SITE = "usr/lib/python3/dist-packages"
"""Where Debian's Python looks for packages."""

STATUS_FOLDER = "var/lib/dpkg/status.d"
"""Control files of the packages, where scanners of images read them."""

AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
USER = 65532
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/nologin\nnonroot:x:{USER}:{USER}:nonroot:/:/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}

UNUSED = (
    "lib-dynload/_curses*", "lib-dynload/_dbm*", "lib-dynload/_sqlite3*", "lib-dynload/_test*", "lib-dynload/nis.*",
    "lib-dynload/ossaudiodev*", "lib-dynload/readline*", "config-*", "curses", "dbm", "distutils", "lib2to3",
    "pydoc_data", "sitecustomize.py", "sqlite3", "venv",
)  # fmt: skip
"""Of the standard library: what needs further libraries, and what builds or documents."""

UNUSED_IN_WHEELS = (
    "*.dist-info/RECORD", "bin", "cel_expr_python/ext", "example.py", "grpc/**/*.pyx", "kubernetes/**/client/api/[!_]*",
    "kubernetes/**/client/models/[!_]*", "numpy/**/*.a", "numpy/**/include", "numpy/**/tests", "numpy/f2py",
)  # fmt: skip
"""Of the wheels: scripts and lists of files, which name the folder of the build; what is for builds and tests; and two
thirds of all files, a class for each kind and API of Kubernetes."""


class RuntimeBuildError(Exception):
    """The runtime cannot be built here; the message says what is missing."""


class PackagesError(RuntimeBuildError):
    """The apt sources of this machine do not have the packages, or cannot be reached."""


def build_base(tree: Path) -> None:
    """Write the runtime without Rightslice into an empty folder; equal packages give equal files.

    Raises:
        RuntimeBuildError: this machine is no Debian or Ubuntu, or cannot reach its apt sources or the package index.
    """
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary, "stage")
        packages = download_packages(Path(temporary), *PACKAGES)
        for package in packages:
            _run("dpkg-deb", "--extract", package, stage)
        _copy_python(stage, tree)
        _copy_libraries(stage, tree)  # those of Python, which then installs the wheels
        _install(tree, "--require-hashes", "--requirement", LOCK)
        _copy_libraries(stage, tree)
        _write_settings(stage, tree)
        _record_packages(packages, stage, tree)
    _compile(tree, "usr/lib")


def download_packages(folder: Path, *names: str) -> list[Path]:
    """Download packages of Debian or Ubuntu with their dependencies into a folder.

    Raises:
        RuntimeBuildError: this machine is no Debian or Ubuntu, or cannot reach its apt sources.
    """
    if shutil.which("apt-get") is None:
        raise RuntimeBuildError("Python and the C library are packages of Debian: needs Debian or Ubuntu for apt-get.")
    for each in ("lists/partial", "archives/partial"):
        (folder / each).mkdir(parents=True)
    (folder / "status").touch()  # nothing is installed: apt-get downloads all dependencies
    places = [f"-oDir::{name}={folder / path}" for name, path in (
        ("Cache", ""), ("State", ""), ("State::lists", "lists"), ("State::status", "status"),
    )]  # fmt: skip
    apt = ["apt-get", "-qq", *places, "-oAPT::Architecture=amd64", "-oAPT::Install-Recommends=false"]
    apt += [] if os.geteuid() else ["-oAPT::Sandbox::User=root"]
    subprocess.run([*apt, "update"], capture_output=True, check=False)  # a source that fails may be of other packages
    try:
        _run(*apt, "--yes", "--download-only", "install", *names)
    except RuntimeBuildError as error:
        raise PackagesError(str(error)) from error
    return sorted((folder / "archives").glob("*.deb"))


def add_rightslice(tree: Path, wheel: Path) -> None:
    """Install the wheel of this checkout into a runtime."""
    _install(tree, "--no-index", f"--find-links={wheel.parent}", f"rightslice=={__version__}")
    _compile(tree, f"{SITE}/webhook")


def python_command(tree: Path) -> list[str]:
    """Return the command of the runtime's Python outside a container, with the runtime's libraries."""
    return [str(tree / LOADER), "--library-path", str(tree / LIBRARIES), str(tree / PYTHON), "-I", "-B"]


def _copy_python(stage: Path, tree: Path) -> None:
    version = (stage / PYTHON).readlink().name
    for folder in ("usr/bin", "lib64", LIBRARIES):
        (tree / folder).mkdir(parents=True)
    shutil.copy2(stage / "usr/bin" / version, tree / "usr/bin")
    (tree / PYTHON).symlink_to(version)
    shutil.copytree(stage / "usr/lib" / version, tree / "usr/lib" / version, symlinks=True)
    _remove(tree / "usr/lib" / version, UNUSED)
    (loader,) = (file for folder in _libraries(stage) if (file := folder / Path(LOADER).name).exists())
    shutil.copy2(loader, tree / LOADER)
    (tree / "lib").symlink_to("usr/lib")


def _libraries(stage: Path) -> list[Path]:
    """Return the folders of libraries: Debian 12 has two, newer ones have merged them."""
    return [stage / "lib/x86_64-linux-gnu", stage / LIBRARIES]


def _copy_libraries(stage: Path, tree: Path) -> None:
    """Copy the libraries that the program and the extension modules load, and one that the C library opens later."""
    folders = ":".join(map(str, _libraries(stage)))
    binaries = (tree / PYTHON, *tree.rglob("*.so"), *tree.rglob("*.so.*"))
    loaded = {
        line.strip()
        for file in binaries
        for line in _run(tree / LOADER, "--library-path", folders, "--list", file).splitlines()
    }
    places = {Path(line.split()[2]) for line in loaded if " => " in line}
    opened = {folder / "libgcc_s.so.1" for folder in _libraries(stage)}
    for place in (each for each in places | opened if stage in each.parents and each.exists()):
        shutil.copy2(place, tree / LIBRARIES / place.name)


def _install(tree: Path, *wheels: str | Path) -> None:
    """Install wheels: this environment's pip, in the runtime's Python, selects those that it can load."""
    pip = Path(sysconfig.get_path("purelib"), "pip")
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--only-binary=:all:"]
    _run(*python_command(tree), pip, "install", *options, f"--target={tree / SITE}", *wheels)
    _remove(tree / SITE, UNUSED_IN_WHEELS)


def _write_settings(stage: Path, tree: Path) -> None:
    authorities = sorted((stage / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    texts = FILES | {AUTHORITIES: "".join(each.read_text(encoding="ascii") for each in authorities)}
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    (tree / "usr/lib/ssl").mkdir()
    (tree / "usr/lib/ssl/cert.pem").symlink_to(f"/{AUTHORITIES}")
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)


def _record_packages(packages: Iterable[Path], stage: Path, tree: Path) -> None:
    """Write the license and the control file of each package with a file in the runtime, where scanners read them."""
    status = tree / STATUS_FOLDER
    status.mkdir(parents=True)
    for package in packages:
        names = [line.split()[5] for line in _run("dpkg-deb", "--contents", package).splitlines()]
        used = [name for name in names if name.endswith((".so", ".py")) or ".so." in name or "/bin/" in name]
        if any((tree / "usr" / name.removeprefix("./").removeprefix("usr/")).is_file() for name in used):
            name = package.name.partition("_")[0]
            (status / name).write_text(_run("dpkg-deb", "--field", package), encoding="utf-8")
            copyright_file = f"usr/share/doc/{name}/copyright"
            (tree / copyright_file).parent.mkdir(parents=True)
            shutil.copy2(stage / copyright_file, tree / copyright_file)


def _compile(tree: Path, folder: str) -> None:
    """Compile modules, with their paths in the image; Python then trusts the bytecode without a look at the source."""
    options = ("-q", "--invalidation-mode=unchecked-hash", "-s", str(tree), "-p", "/")
    _run(*python_command(tree), "-m", "compileall", *options, tree / folder)


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeBuildError(f"{' '.join(map(str, command[:4]))} … failed:\n{done.stderr or done.stdout}")
    return done.stdout
