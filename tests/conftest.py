"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.fixtures import namespace, nodes, plane, plane_to_trouble

__all__ = ["namespace", "nodes", "plane", "plane_to_trouble", "shared"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; tests that need it are skipped without it."""
    folder = Path(os.environ.get("RIGHTSLICE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("needs the reference data in ../shared, which is not beside this checkout")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a control plane: `make test-fast` leaves it out."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()) or ROOT / "tests" / "cluster" in item.path.parents:
            item.add_marker(pytest.mark.cluster)
