"""`make release`: the files of a release in dist/, with a bill of materials and checksums.

Equal checkouts give equal files.
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
from datetime import UTC, datetime
from pathlib import Path

from tests.conftest import ROOT
from tests.release.lock_files import read_lock_file
from tests.release.sbom import bill_of_materials
from webhook import __version__
from webhook.report.serialization import json_text

MANIFESTS = ("install.yaml", "install-enforce.yaml")
CHECKSUMS = "SHA256SUMS"
LOCK = "agent.txt"
"""The lock of the image: that of the webhook and of the agent."""


def build_release(folder: Path, time: datetime) -> list[Path]:
    """Write all files into an empty folder, and return their paths; the checksums are the last."""
    folder.mkdir(parents=True)
    hatchling = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": f"{time.timestamp():.0f}"}
    subprocess.run(hatchling, cwd=ROOT, check=True, env=environment, stdout=subprocess.DEVNULL)
    for name in MANIFESTS:
        shutil.copyfile(ROOT / "manifests" / name, folder / name)
    write_chart(folder, time)
    packages = read_lock_file(ROOT / "requirements" / LOCK)
    document = bill_of_materials("rightslice", __version__, "Apache-2.0", packages, time)
    (folder / f"rightslice-{__version__}.cdx.json").write_text(json_text(document), encoding="utf-8")
    files = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    return [*files, folder / CHECKSUMS]


def write_chart(folder: Path, time: datetime) -> None:
    """Write the chart into a folder as `helm package` does: the linked manifests are files of the archive."""
    chart = ROOT / "charts" / "rightslice"
    lines = (chart / ".helmignore").read_text(encoding="utf-8").splitlines()
    ignored = [line for line in lines if line and not line.startswith("#")]
    with (
        gzip.GzipFile(folder / f"rightslice-{__version__}.tgz", "wb", mtime=time.timestamp()) as compressed,
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
    """Return the time of the checked out commit."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return datetime.fromtimestamp(int(shown.stdout), UTC)


if __name__ == "__main__":
    dist = Path(sys.argv[1])
    shutil.rmtree(dist, ignore_errors=True)
    sys.stdout.writelines(f"{file}\n" for file in build_release(dist, commit_time()))
