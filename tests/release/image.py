"""`make image`: the runtime as an image in an OCI archive, as the image specification describes it, for amd64.

    skopeo copy oci-archive:dist/rightslice-0.1.0-oci.tar docker://registry.example.com/rightslice:0.1.0

The Dockerfile makes an image for the same commands, on bases of a registry.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.release.archive import add_files, add_text
from tests.release.runtime import PYTHON, SITE, USER
from webhook import __version__

MEDIA_TYPE = "application/vnd.oci.image.{}"
LABELS = {
    "org.opencontainers.image.title": "rightslice",
    "org.opencontainers.image.description": "Admission control, right-sizing and placement of GPU pods on Kubernetes",
    "org.opencontainers.image.version": __version__,
    "org.opencontainers.image.licenses": "Apache-2.0",
}
SETTINGS = {
    "User": f"{USER}:{USER}",  # numbers, so that Kubernetes can check runAsNonRoot without the image's user table
    "WorkingDir": "/",
    "Env": ["PATH=/usr/bin", "PYTHONDONTWRITEBYTECODE=1"],
    "Entrypoint": [f"/{PYTHON}", "-m", "webhook.cli"],
    "Cmd": ["--help"],
    "ExposedPorts": {"8443/tcp": {}},
    "Labels": LABELS,
}


def write_image(tree: Path, file: Path, time: datetime) -> int:
    """Write the archive of a runtime; return the compressed size of the layers, in bytes.

    A layer each for the system, the wheels and Rightslice, so that an upgrade fetches only what has changed.
    """
    seconds = round(time.timestamp())
    layers = [_layer(tree, paths, seconds) for paths in _paths_by_layer(tree)]
    blobs = [gzip.compress(layer, compresslevel=6, mtime=0) for layer in layers]
    config = _json(
        {
            "created": time.isoformat(),
            "architecture": "amd64",
            "os": "linux",
            "config": SETTINGS,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE.format("manifest.v1+json"),
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar+gzip", blob) for blob in blobs],
            "annotations": LABELS,
        }
    )
    named = {"annotations": {"org.opencontainers.image.ref.name": __version__}}
    index = _json({"schemaVersion": 2, "manifests": [_descriptor("manifest.v1+json", manifest) | named]})
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        add_text(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), seconds, 0o644)
        add_text(archive, "index.json", index, seconds, 0o644)
        for blob in (manifest, config, *blobs):
            add_text(archive, f"blobs/{_digest(blob).replace(':', '/')}", blob, seconds, 0o644)
    return sum(map(len, blobs))


def _paths_by_layer(tree: Path) -> tuple[list[Path], ...]:
    layers: tuple[list[Path], ...] = ([], [], [])
    for path in tree.rglob("*"):
        inside = path.relative_to(tree / SITE).parts if tree / SITE in path.parents else ()
        is_ours = inside and inside[0].partition("-")[0] in ("webhook", "rightslice")
        layers[2 if is_ours else 1 if inside else 0].append(path)
    return layers


def _layer(tree: Path, paths: Iterable[Path], seconds: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        add_files(archive, tree, paths, seconds)
    return stream.getvalue()


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": MEDIA_TYPE.format(kind), "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
