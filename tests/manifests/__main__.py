"""Write the manifests that are generated from code or built by kustomize."""

from __future__ import annotations

import subprocess

from tests.conftest import ROOT
from tests.controlplane.build import control_plane, wanted_version
from tests.manifests.generated import BUILT, files

for name, text in files().items():
    (ROOT / "manifests" / name).write_text(text, encoding="utf-8")

kubectl = str(control_plane(wanted_version())["kubectl"])
for name, overlay in BUILT.items():
    build = [kubectl, "kustomize", str(ROOT / "manifests" / overlay)]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True)
    (ROOT / "manifests" / name).write_text(built.stdout, encoding="utf-8")
