"""CustomResourceDefinitions of others, for tests of what we write in their kinds: out of their Go modules, by hash.

They are kept beside the programs, under `crds/NAME-VERSION`, and never in the checkout. Another operator is a line in
`OPERATORS` and its module in `crds/go.mod` (then, in that folder, `go mod download PATH`, which writes go.sum).
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

from tests.controlplane.errors import ToolError
from tests.controlplane.keeping import Say, alone, cache, tell
from tests.controlplane.programs import MODULES
from tests.controlplane.toolchain import environment, find_go, go_line

PINNED = MODULES / "crds"
"""The folder whose go.mod says which releases, and whose go.sum what is in them."""

LONGEST = 300
"""Seconds until a download of some megabytes is given up."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Where its definitions are: the path of its Go module, and a folder in it."""

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
    """The release of an operator that go.mod asks for, "v1.2.3"."""
    text = (PINNED / "go.mod").read_text(encoding="utf-8")
    found: str = re.findall(rf"^\s+{re.escape(OPERATORS[name].module)} (v\S+)$", text, re.MULTILINE)[0]
    return found


def definitions(name: str, say: Say = tell) -> Path:
    """The folder with the definitions of one of `OPERATORS`, a YAML file each; fetched first where it is not kept yet.

    Raises:
        ToolError: it could not be fetched, or is not what go.sum says.
    """
    kept = cache() / "crds" / f"{name}-{version_of(name)}"
    if not kept.is_dir():
        with alone(kept.parent, say):
            if not kept.is_dir():
                _fetch(name, kept, say)
    return kept


def _fetch(name: str, kept: Path, say: Say) -> None:
    """Put the definitions there whole, or not at all."""
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
    """The folder of a module that Go fetched, and compared with go.sum."""
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
