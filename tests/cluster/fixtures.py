"""One plane for a session, and a namespace and nodes for each test."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.controlplane.build import control_plane, wanted_version
from tests.controlplane.build_cache import print_message


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[Plane]:
    """A control plane of version KUBERNETES_VERSION. Its logs are kept if a test failed."""
    with _uncaptured(request.config):
        programs = control_plane(wanted_version())
    folder = Path(tempfile.mkdtemp(prefix="plane-"))
    failed = request.session.testsfailed
    try:
        with Plane(programs, folder) as running:
            yield running
        failed = request.session.testsfailed - failed
    except BaseException:
        failed = True
        raise
    finally:
        _keep_or_remove(folder, request.config, keep=bool(failed))


@pytest.fixture
def plane_to_disrupt(plane: Plane) -> Iterator[Plane]:
    """The same plane, for a test that stops, kills or restarts its processes; they are restarted afterwards."""
    yield plane
    plane.restore()


@pytest.fixture
def namespace(plane: Plane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test; deleted afterwards with everything in it."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = plane.add_namespace(f"{slug[:50].strip('-')}-{secrets.token_hex(3)}")
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def nodes(plane: Plane) -> Iterator[list[str]]:
    """The names of the example cluster's nodes, which are ready for pods; deleted afterwards."""
    names = add_nodes(plane, demo_nodes())
    yield names
    remove_nodes(plane, names)


def _keep_or_remove(folder: Path, config: pytest.Config, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with _uncaptured(config):
        print_message(f"\nA test failed: the logs of its control plane are kept in {folder}")


def _uncaptured(config: pytest.Config) -> AbstractContextManager[Any]:
    """Disable pytest's capture for the block, so that output reaches the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return nullcontext() if capture is None else capture.global_and_fixture_disabled()
