"""Kinds that others brought into a cluster: their CRDs, from the published sources of whoever ships them.

A folder under `crds` pins one Go module by version and hash. Go fetches it into its own module cache, where it stays;
nothing of it is copied into this project.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.build import LONGEST, Say, cache, environment, tell
from tests.controlplane.errors import ToolError
from tests.controlplane.programs import MODULES
from tests.controlplane.toolchain import find_go


@dataclass(frozen=True, slots=True)
class Crds:
    """The CRDs of one publisher.

    Attributes:
        module: The folder of the go.mod that pins it.
        folder: Where its CRDs are, in the module.
    """

    module: Path
    folder: str


OPENREPORTS = Crds(MODULES / "crds" / "openreports" / "0.2.1", "config/crd")
WGPOLICY = Crds(MODULES / "crds" / "wgpolicy" / "1.13.4", "config/crds/policyreport")
"""wgpolicyk8s.io/v1alpha2 as Kyverno ships it: the working group's own repository was never a module of the proxy."""


def crd_files(crds: Crds, say: Say = tell) -> list[Path]:
    """The files of its CRDs; fetched first where they are not there yet.

    Raises:
        ToolError: it cannot be fetched, or is not what the hash says.
    """
    text = (crds.module / "go.mod").read_text(encoding="utf-8")
    name, version = re.findall(r"^require (\S+) (v\S+)$", text, re.MULTILINE)[0]
    go = find_go(re.findall(r"^go (\S+)$", text, re.MULTILINE)[0], cache(), say)
    done = subprocess.run(
        [str(go), "mod", "download", "-json", f"{name}@{version}"],
        cwd=crds.module,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"{name} {version} could not be fetched with {go}:\n{done.stdout}{done.stderr}".strip())
    return sorted(Path(json.loads(done.stdout)["Dir"], crds.folder).glob("*.yaml"))
