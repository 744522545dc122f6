"""Programs made of the API server's own libraries."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.controlplane.build import ensure
from tests.controlplane.keeping import cache
from tests.controlplane.programs import MODULES, Program


@pytest.fixture(scope="session")
def quantity_program() -> Path:
    """The program that says what apimachinery makes of quantities; another one for other sources."""
    module = MODULES / "quantity"
    sources = b"".join((module / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    name = f"quantity-{hashlib.sha256(sources).hexdigest()[:12]}"
    return ensure([Program(name, module, ".", 20)], cache() / "quantity" / "bin")[name]
