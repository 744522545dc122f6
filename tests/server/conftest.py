"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.site import Site, serving


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server that decides nothing."""
    with serving() as one:
        yield one
