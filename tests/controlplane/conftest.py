"""Programs built with the libraries of the API server, of NVIDIA and of report objects."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.controlplane.build import ensure, selectors_program
from tests.controlplane.build_cache import cache
from tests.controlplane.programs import HAS_GCC, KUBERNETES, MODULES, Program


@pytest.fixture(scope="session")
def quantity_program() -> Path:
    """Build the program that evaluates quantities with apimachinery."""
    return _build_module("quantity")


@pytest.fixture(scope="session")
def nvidia_program() -> Path:
    """Build the program that reads configurations as NVIDIA's do; with gcc also as mig-parted does."""
    return _build_module("nvidia", cgo=HAS_GCC)


@pytest.fixture(scope="session")
def reports_program() -> Path:
    """Build the program that reads report objects with the types of their publishers."""
    return _build_module("reports", seconds=60)


def _build_module(folder: str, *, seconds: int = 20, cgo: bool = False) -> Path:
    """Return the program of a module of ours; it is rebuilt if its sources change."""
    module = MODULES / folder
    sources = b"".join(file.read_bytes() for file in sorted(module.iterdir()))
    name = f"{folder}-{hashlib.sha256(sources).hexdigest()[:12]}{'-cgo' if cgo else ''}"
    return ensure([Program(name, module, ".", seconds, cgo=cgo)], cache() / folder / "bin")[name]


@pytest.fixture(scope="session")
def selector_program() -> Path:
    """Build the program that compiles and evaluates selectors as the API server and the scheduler."""
    return selectors_program(KUBERNETES)
