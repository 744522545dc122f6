"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.site import OPEN, Site, serve_site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server that decides nothing."""
    with serve_site() as one:
        yield one


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    """Close what a test opened."""
    yield
    while OPEN:
        OPEN.pop().close()
