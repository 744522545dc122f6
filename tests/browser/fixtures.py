"""One browser for a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.driver import BrowserProcess, start_browser
from tests.browser.installation import install_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserProcess]:
    """A browser; it is installed if `make browser` did not do so."""
    with start_browser(install_browser()) as running:
        yield running
