"""Label selectors select what the API server selects by them."""

from __future__ import annotations

import pytest

from tests.cli.test_selection import LABELS, MISTAKES, SELECTORS
from tests.cluster.plane import Plane


@pytest.fixture
def labeled(plane: Plane, namespace: str) -> str:
    """Create an object for each set of labels; return their namespace."""
    for name, labels in LABELS.items():
        metadata = {"name": name, "labels": labels}
        plane.api.create(
            f"/api/v1/namespaces/{namespace}/services",
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}},
        )
    return namespace


def test_the_api_server_selects_the_same(plane: Plane, labeled: str) -> None:
    for selector, names in SELECTORS.values():
        found = plane.kubectl("get", "services", "-n", labeled, "-o", "name", "-l", selector).stdout.split()
        assert sorted(found) == sorted(f"service/{name}" for name in names.split()), selector


def test_the_api_server_rejects_the_same(plane: Plane, labeled: str) -> None:
    for selector, _ in MISTAKES.values():
        flags = "get", "services", "-n", labeled, "-l", selector
        assert plane.kubectl(*flags, check=False).returncode, selector
