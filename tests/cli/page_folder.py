"""The folder in which the commands of the pages are run: a checkout, and the other files that a reader has."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

from tests.conftest import ROOT
from tests.house.checkout import read_checkout_file

EXAMPLES = ROOT / "examples"
_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def make_page_folder(folder: Path) -> None:
    """Make the folder: the shipped files, manifests, a snapshot, and its usage."""
    for name in ("policies", "examples", "manifests", "charts"):
        (folder / name).symlink_to(ROOT / name)
    _copy_folders(folder)
    snapshot = "---\n".join(file.read_text("utf-8") for file in sorted((EXAMPLES / "cluster").glob("*.yaml")))
    for name in ("cluster.yaml", "SNAPSHOT"):
        (folder / name).write_text(snapshot, encoding="utf-8")
    shutil.copy(EXAMPLES / "usage/demo.json", folder / "usage.json")
    (folder / "use.json.gz").write_bytes(gzip.compress((EXAMPLES / "usage/demo.json").read_bytes()))
    shutil.copy(EXAMPLES / "pods/01-notebook-8gb.yaml", folder / "pod.yaml")
    shutil.copy(EXAMPLES / "pods/17-claim-8gb.yaml", folder / "claim.yaml")
    (folder / "research.yaml").write_text(_YAML.findall(read_checkout_file("README.md"))[0], encoding="utf-8")


def _copy_folders(folder: Path) -> None:
    """Copy folders that the pages name and that a reader would have."""
    shutil.copytree(EXAMPLES / "cluster", folder / "cluster")
    shutil.copytree(EXAMPLES / "pods", folder / "deploy")
    shutil.copytree(ROOT / "policies", folder / "changed")
    shutil.copytree(ROOT / "policies/exceptions", folder / "exceptions")
    (folder / "limits").mkdir()
    shutil.copy(EXAMPLES / "cluster/limits.yaml", folder / "limits")
