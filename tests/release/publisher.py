"""Where a publisher releases: `project.urls` of pyproject.toml, the only place to set it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = (
    "charts/rightslice/Chart.yaml",
    "examples/gitops/.pre-commit-config.yaml",
    "examples/gitops/.github/workflows/rightslice.yaml",
)
"""Files that name the repository."""

_HOST = "https://github.com/"
_BEFORE = r"(?P<before>- repo: https://github\.com/|- uses: |icon: https://raw\.githubusercontent\.com/)"
_ADDRESS = re.compile(rf"{_BEFORE}(?!actions/)[\w.-]+/[\w.-]+")


def repository_address() -> str:
    """Return the address of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def example_files() -> dict[str, str]:
    """Return the examples as `make manifests` writes them, by their path from the root."""
    return {name: name_repository((ROOT / name).read_text(encoding="utf-8"), repository_address()) for name in EXAMPLES}


def name_repository(text: str, address: str) -> str:
    """Return a text whose uses of our repository name the one of an address."""
    return _ADDRESS.sub(lambda found: found["before"] + address.removeprefix(_HOST), text)
