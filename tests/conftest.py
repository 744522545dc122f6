"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; tests that need it are skipped without it."""
    folder = Path(os.environ.get("RIGHTSLICE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("needs the reference data in ../shared, which is not beside this checkout")
    return folder
