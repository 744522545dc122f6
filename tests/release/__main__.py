"""`make release`: the files of a release in dist/, with a bill of materials and checksums.

Equal checkouts give equal files, as long as Debian's packages are the same. `make binary` writes only the file that
needs no Python, and `make image` only the image.
The workflow .github/workflows/release.yml signs them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.conftest import ROOT
from tests.release.image import write_image
from tests.release.krew import write_krew_files
from tests.release.lock_files import read_lock_file
from tests.release.runtime import LOCK, add_rightslice, build_base
from tests.release.sbom import SystemPackage, bill_of_materials, read_system_packages
from tests.release.standalone import standalone_file
from webhook import __version__
from webhook.report.serialization import json_text

MANIFESTS = ("install.yaml", "install-enforce.yaml")
CHECKSUMS = "SHA256SUMS"
BINARY = f"rightslice-{__version__}-linux-amd64"
IMAGE = f"rightslice-{__version__}-oci.tar"
CHART = f"rightslice-chart-{__version__}.tgz"
"""Not named as `helm package` names it: the source distribution of Python is rightslice-VERSION.tar.gz."""
BILL = f"rightslice-{__version__}.cdx.json"
"""Bill of materials of what we install: for the image of the Dockerfile, whose bases have their own."""
RUNTIME_BILL = f"{BINARY}.cdx.json"
"""Bill of materials of the file without Python and of the image of `make image`, with Debian's packages."""


def build_release(folder: Path, time: datetime, standalone: bytes, system: Sequence[SystemPackage] = ()) -> list[Path]:
    """Write all files into an empty folder, and return their paths; the checksums are the last.

    Args:
        folder: It must not exist.
        time: The time of the files in archives.
        standalone: The file that needs no Python.
        system: The packages of Debian or Ubuntu in it.
    """
    folder.mkdir(parents=True)
    build_packages(folder, time)
    write_program(folder / BINARY, standalone)
    write_krew_files(folder, standalone, round(time.timestamp()))
    for name in MANIFESTS:
        shutil.copyfile(ROOT / "manifests" / name, folder / name)
    write_chart(folder, time)
    write_bill(folder / BILL, time)
    write_bill(folder / RUNTIME_BILL, time, system)
    files = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    return [*files, folder / CHECKSUMS]


def write_bill(file: Path, time: datetime, system: Sequence[SystemPackage] = ()) -> None:
    """Write the bill of materials of the locked packages, and of the packages of Debian or Ubuntu."""
    document = bill_of_materials("rightslice", __version__, "Apache-2.0", read_lock_file(LOCK), time, system)
    file.write_text(json_text(document), encoding="utf-8")


def build_packages(folder: Path, time: datetime, *targets: str, checkout: Path = ROOT) -> None:
    """Build the source distribution and the wheel of a checkout, or only these targets."""
    flags = [flag for target in targets for flag in ("--target", target)]
    hatchling = [sys.executable, "-m", "hatchling", "build", *flags, "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": f"{time.timestamp():.0f}"}
    done = subprocess.run(hatchling, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: the wheel cannot be built:\n{done.stderr}")


@contextmanager
def runtime(time: datetime) -> Iterator[Path]:
    """Build the runtime of this checkout in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, packages = Path(temporary, "runtime"), Path(temporary, "packages")
        tree.mkdir()
        build_packages(packages, time, "wheel")
        build_base(tree)
        add_rightslice(tree, next(packages.glob("*.whl")))
        yield tree


def write_program(file: Path, content: bytes) -> None:
    """Write a file that can be executed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755)


def write_chart(folder: Path, time: datetime) -> None:
    """Write the chart into a folder as `helm package` does: the linked manifests are files of the archive."""
    chart = ROOT / "charts" / "rightslice"
    lines = (chart / ".helmignore").read_text(encoding="utf-8").splitlines()
    ignored = [line for line in lines if line and not line.startswith("#")]
    with (
        gzip.GzipFile(folder / CHART, "wb", mtime=time.timestamp()) as compressed,
        tarfile.open(fileobj=compressed, mode="w", dereference=True) as archive,
    ):
        for path in sorted(
            Path(parent, name) for parent, _, names in os.walk(chart, followlinks=True) for name in names
        ):
            inside = path.relative_to(chart)
            if not any(part.match(pattern) for pattern in ignored for part in (inside, *inside.parents[:-1])):
                entry = tarfile.TarInfo(f"rightslice/{inside.as_posix()}")
                content = path.read_bytes()
                entry.size, entry.mtime, entry.mode = len(content), int(time.timestamp()), 0o644
                archive.addfile(entry, io.BytesIO(content))


def commit_time() -> datetime:
    """Return the time of the checked out commit, which an archive without history has as the time of its files."""
    log = ["git", "log", "-1", "--format=%ct"]
    shown = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = float(shown.stdout or (ROOT / "pyproject.toml").stat().st_mtime)
    return datetime.fromtimestamp(int(seconds), UTC)


def main(folder: Path, target: str) -> list[str]:
    """Write the files of a target of make, and return their paths."""
    time = commit_time()
    sys.stderr.write("Building the runtime: Python, packages of Debian or Ubuntu, and locked wheels\n")
    with runtime(time) as tree:
        system = read_system_packages(tree)
        if target == "image":
            size = write_image(tree, folder / IMAGE, time)
            write_bill(folder / RUNTIME_BILL, time, system)
            return [f"{folder / IMAGE}: {size / 1e6:.0f} MB compressed", str(folder / RUNTIME_BILL)]
        standalone = standalone_file(tree, round(time.timestamp()))
    if target == "binary":
        write_program(folder / BINARY, standalone)
        return [str(folder / BINARY)]
    shutil.rmtree(folder, ignore_errors=True)
    return list(map(str, build_release(folder, time, standalone, system)))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in main(Path(sys.argv[1]), sys.argv[2]))
