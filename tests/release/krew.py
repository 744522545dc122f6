"""The archive of the file without Python, and the manifest by which krew installs it as a plugin of kubectl.

kubectl krew install --manifest rightslice-krew.yaml
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.release.archive import add_text
from tests.release.publisher import repository_address
from webhook import __version__

ARCHIVE = f"rightslice-{__version__}-linux-amd64.tar.gz"
MANIFEST = "rightslice-krew.yaml"
COMPLETION_STEP = 'ln -s kubectl-rightslice "${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-rightslice"'
"""krew makes one name for a plugin; kubectl looks for a second one."""


def write_krew_files(folder: Path, standalone: bytes, seconds: int) -> None:
    """Write both into a folder. krew extracts no links: kubectl's name of the program is one that krew makes."""
    with (
        gzip.GzipFile(folder / ARCHIVE, "wb", compresslevel=1, mtime=seconds) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        add_text(archive, "rightslice", standalone, seconds)
        add_text(archive, "LICENSE", (ROOT / "LICENSE").read_bytes(), seconds, 0o644)
    checksum = hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest()
    (folder / MANIFEST).write_text(yaml.safe_dump(_manifest(checksum), sort_keys=False), encoding="utf-8")


def _manifest(checksum: str) -> dict[str, object]:
    homepage = repository_address()
    platform = {
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": f"{homepage}/releases/download/v{__version__}/{ARCHIVE}",
        "sha256": checksum,
        "files": [{"from": name, "to": "."} for name in ("rightslice", "LICENSE")],
        "bin": "rightslice",
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "rightslice"},
        "spec": {
            "version": f"v{__version__}",
            "homepage": homepage,
            "shortDescription": "Check, right-size and audit GPU pods",
            "description": "Evaluates GPU pods and manifests against policies, says which of them need less than they\n"
            "request, and what that would save; installs and checks the admission webhook.\n",
            "caveats": "The first start unpacks the program into ~/.cache/rightslice, which takes a few seconds.\n"
            f"For completion in kubectl 1.26 or newer:\n  {COMPLETION_STEP}\n",
            "platforms": [platform],
        },
    }
