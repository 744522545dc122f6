"""CustomResourceDefinitions of other projects, for tests of objects of their kinds: from their Go modules, by hash.

They are cached beside the programs, under `crds/NAME-VERSION`, and never in the checkout. To add an operator, add a
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

from tests.controlplane.build_cache import Say, alone, cache, tell
from tests.controlplane.errors import ToolError
from tests.controlplane.programs import MODULES
from tests.controlplane.toolchain import environment, find_go, go_line

PINNED = MODULES / "crds"
"""The folder whose go.mod says which releases, and whose go.sum what is in them."""

LONGEST = 300
"""Seconds until a download of some megabytes is given up."""


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
    # As Kyverno ships it: the working group's own repository was never a module of the proxy.
    "wgpolicy": Operator("github.com/kyverno/kyverno", "config/crds/policyreport"),
}


def version_of(name: str) -> str:
    """Return the release of an operator in go.mod, "v1.2.3"."""
    text = (PINNED / "go.mod").read_text(encoding="utf-8")
    found: str = re.findall(rf"^\s+{re.escape(OPERATORS[name].module)} (v\S+)$", text, re.MULTILINE)[0]
    return found


def definitions(name: str, say: Say = tell) -> Path:
    """Return the folder with the definitions of one of `OPERATORS`, fetched first if it is not cached.

    Raises:
        ToolError: it could not be fetched, or differs from go.sum.
    """
    kept = cache() / "crds" / f"{name}-{version_of(name)}"
    if not kept.is_dir():
        with alone(kept.parent, say):
            if not kept.is_dir():
                _fetch(name, kept, say)
    return kept


def _fetch(name: str, kept: Path, say: Say) -> None:
    """Store the definitions there, whole or not at all."""
    say(f"Fetching the CustomResourceDefinitions of {name} {version_of(name)}, a few megabytes, once")
    operator = OPERATORS[name]
    found = _download(operator.module, find_go(go_line(PINNED), cache(), say)) / operator.folder
    with tempfile.TemporaryDirectory(dir=kept.parent) as new:
        copied = Path(new) / name
        copied.mkdir()
        for file in found.glob("*.yaml"):
            shutil.copyfile(file, copied / file.name)
        copied.rename(kept)


def _download(module: str, go: Path) -> Path:
    """Return the folder of a module that Go fetched and compared with go.sum."""
    done = subprocess.run(
        [str(go), "mod", "download", "-json", module],
        cwd=PINNED,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"{module} could not be fetched with {go}:\n{done.stderr}{done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])
