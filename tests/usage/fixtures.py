"""One Prometheus for a session; the samples of each test have their own label."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.build import prometheus_program
from tests.usage.prometheus import PrometheusServer


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A real Prometheus."""
    with PrometheusServer(prometheus_program(), tmp_path_factory.mktemp("prometheus")) as server:
        yield server
