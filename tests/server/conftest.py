"""One server for all tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.site import OPEN, Site, serve_site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server that returns empty decisions."""
    with serve_site() as one:
        yield one


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    """Close the connections of a test."""
    yield
    while OPEN:
        OPEN.pop().close()
