"""JSONPath templates are printed as kubectl prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.plane import Plane
from tests.report.test_jsonpath import CASES, MISTAKES, THING


@pytest.fixture
def thing(tmp_path: Path) -> str:
    """Write the object of the cases to a file."""
    file = tmp_path / "thing.json"
    file.write_text(json.dumps(THING))
    return str(file)


@pytest.mark.parametrize(("template", "printed"), CASES.values(), ids=CASES)
def test_kubectl_prints_the_same(plane: Plane, thing: str, template: str, printed: str) -> None:
    ran = plane.kubectl("annotate", "--local", "--overwrite", "-f", thing, "q=r", "-o", f"jsonpath={template}")
    assert ran.stdout == printed


@pytest.mark.parametrize("template", MISTAKES)
def test_kubectl_rejects_the_same(plane: Plane, thing: str, template: str) -> None:
    flags = "annotate", "--local", "--overwrite", "-f", thing, "q=r", "-o", f"jsonpath={template}"
    assert plane.kubectl(*flags, check=False).returncode
