"""One installation for all tests of this folder, and a namespace that opted in for each."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.installation import Installation, install_from_page
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually

OPTED_IN = {"rightslice.dev/right-sizing": "enforced"}


@pytest.fixture(scope="package")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install everything, with the example cluster's nodes and the shipped policies."""
    nodes = add_nodes(plane, demo_nodes())
    try:
        with install_from_page(plane, tmp_path_factory.mktemp("installed")) as installation:
            yield installation
    finally:
        remove_nodes(plane, nodes)


@pytest.fixture
def quiet_site(site: Installation) -> Installation:
    """The installation once the namespaces of earlier tests are gone: until then, controllers change their pods."""

    def ending() -> list[str]:
        found = site.plane.api.get("/api/v1/namespaces", labelSelector="rightslice.dev/right-sizing=enforced")["items"]
        return [each["metadata"]["name"] for each in found if each["status"]["phase"] == "Terminating"]

    eventually(ending, until=lambda names: not names)
    return site


@pytest.fixture
def team(site: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test whose pods are right-sized; deleted afterwards with everything in it.

    Its pods are deleted at once, so that their slices are free for the next test however busy the machine is.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = site.plane.add_namespace(f"{slug[:50].strip('-')}-{secrets.token_hex(3)}", OPTED_IN)
    yield name
    site.plane.api.delete(f"/api/v1/namespaces/{name}")
    site.plane.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="0")
