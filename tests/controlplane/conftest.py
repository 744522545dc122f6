"""Programs built with the API server's own libraries."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.controlplane.build import ensure, selectors_program
from tests.controlplane.build_cache import cache
from tests.controlplane.programs import KUBERNETES, MODULES, Program


@pytest.fixture(scope="session")
def quantity_program() -> Path:
    """Build the program that evaluates quantities with apimachinery; it is rebuilt if its sources change."""
    module = MODULES / "quantity"
    sources = b"".join((module / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    name = f"quantity-{hashlib.sha256(sources).hexdigest()[:12]}"
    return ensure([Program(name, module, ".", 20)], cache() / "quantity" / "bin")[name]


@pytest.fixture(scope="session")
def selector_program() -> Path:
    """Build the program that compiles and evaluates selectors as the API server and the scheduler."""
    return selectors_program(KUBERNETES)
