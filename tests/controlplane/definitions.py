"""CustomResourceDefinitions of other projects, for tests of their kinds: from their Go modules, pinned by hash.

They are cached next to the programs, under `crds/NAME-VERSION`, and never in the checkout. To add an operator, add a
line to `OPERATORS` and its module to `crds/go.mod` (then run `go mod download PATH` in that folder, to update go.sum).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.build_cache import Printer, cache, lock_folder, print_message
from tests.controlplane.errors import ToolError
from tests.controlplane.programs import MODULES
from tests.controlplane.toolchain import environment, find_go, go_line

PINNED = MODULES / "crds"
"""The folder whose go.mod pins the releases, and whose go.sum their content."""

DOWNLOAD_SECONDS = 300
"""Timeout of a download of a few megabytes, in seconds."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Location of the definitions: the path of a Go module, and a folder in it."""

    module: str
    folder: str


OPERATORS: Mapping[str, Operator] = {
    "cert-manager": Operator("github.com/cert-manager/cert-manager", "deploy/crds"),
    "prometheus-operator": Operator(
        "github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd"
    ),
    "openreports": Operator("github.com/openreports/reports-api", "config/crd"),
    "kueue": Operator("sigs.k8s.io/kueue", "config/components/crd/bases"),
    "jobset": Operator("sigs.k8s.io/jobset", "config/components/crd/bases"),
    "trainer": Operator("github.com/kubeflow/trainer/v2", "manifests/base/crds"),
    "karpenter": Operator("sigs.k8s.io/karpenter", "pkg/apis/crds"),
    "karpenter-kwok": Operator("sigs.k8s.io/karpenter", "kwok/apis/crds"),
    # As shipped by Kyverno: the working group's own repository is not a module in the proxy.
    "wgpolicy": Operator("github.com/kyverno/kyverno", "config/crds/policyreport"),
}


def version_of(name: str) -> str:
    """Return the release of an operator in go.mod, "v1.2.3"."""
    text = (PINNED / "go.mod").read_text(encoding="utf-8")
    release: str = re.findall(rf"^\s+{re.escape(OPERATORS[name].module)} (v\S+)$", text, re.MULTILINE)[0]
    return release


def definitions(name: str, report: Printer = print_message) -> Path:
    """Return the folder with the definitions of one of `OPERATORS`, fetched first if it is not cached.

    Raises:
        ToolError: it could not be fetched, or differs from go.sum.
    """
    cached = cache() / "crds" / f"{name}-{version_of(name)}"
    if not cached.is_dir():
        with lock_folder(cached.parent, report):
            if not cached.is_dir():
                _fetch(name, cached, report)
    return cached


def _fetch(name: str, cached: Path, report: Printer) -> None:
    """Store the definitions atomically."""
    report(f"Fetching the CustomResourceDefinitions of {name} {version_of(name)}, a few megabytes, once")
    operator = OPERATORS[name]
    source = _download(operator.module, find_go(go_line(PINNED), cache(), report)) / operator.folder
    with tempfile.TemporaryDirectory(dir=cached.parent) as new:
        copy = Path(new) / name
        copy.mkdir()
        for file in source.glob("*.yaml"):
            shutil.copyfile(file, copy / file.name)
        copy.rename(cached)


def _download(module: str, go: Path) -> Path:
    """Return the folder of a module that Go fetched and compared with go.sum."""
    done = subprocess.run(
        [str(go), "mod", "download", "-json", module],
        cwd=PINNED,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"{module} could not be fetched with {go}:\n{done.stderr}{done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])
