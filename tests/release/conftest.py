"""The runtime and what is made of it, built once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.controlplane.build_cache import cache, lock_folder, print_message
from tests.release import runtime
from tests.release.standalone import standalone_file

SECONDS = 1_780_000_000


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def runtime_tree(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runtime of this checkout; what lies below Rightslice is cached until its lock or its build changes."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs Debian or Ubuntu: Python and the C library of the runtime are their packages")
    inputs = b"".join(file.read_bytes() for file in (runtime.LOCK, Path(runtime.__file__)))
    base = cache() / "runtime" / hashlib.sha256(inputs).hexdigest()[:16]
    with lock_folder(base.parent, print_message):
        try:
            if not base.is_dir():
                build_cached_base(base)
        except runtime.PackagesError as error:
            pytest.skip(f"needs packages of the apt sources: {error}")
    tree = tmp_path_factory.mktemp("runtime") / "tree"
    shutil.copytree(base, tree, symlinks=True)
    runtime.add_rightslice(tree, wheel)
    return tree


def build_cached_base(base: Path) -> None:
    """Build the runtime without Rightslice; an interrupted build leaves nothing that is used."""
    new = Path(tempfile.mkdtemp(dir=base.parent))
    new.chmod(0o755)
    runtime.build_base(new)
    new.rename(base)


@pytest.fixture(scope="session")
def standalone(runtime_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the file that needs no Python."""
    file = tmp_path_factory.mktemp("standalone") / "rightslice"
    file.write_bytes(standalone_file(runtime_tree, SECONDS))
    file.chmod(0o755)
    return file
