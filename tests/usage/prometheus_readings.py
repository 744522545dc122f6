"""Helpers to read usage in tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from tests.usage.exporter import Sample
from tests.usage.prometheus import PrometheusServer
from webhook.usage.history_reader import PrometheusReading, read_histories
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.prometheus_source import PrometheusSource


def read_from(source: PrometheusSource, clock: Callable[[], float] = time.time) -> PrometheusReading:
    """Return the usage that a source selects."""

    async def reading() -> PrometheusReading:
        async with PrometheusClient(source) as client:
            return await read_histories(client, clock)

    return asyncio.run(reading())


def reading_of(
    server: PrometheusServer,
    gpus: Iterable[Sample],
    owners: Iterable[Sample] = (),
    *,
    days: int = 1,
    gpus_by: str = "dcgm",
    owners_by: str = "ksm",
) -> PrometheusReading:
    """Return the usage read from a Prometheus that scraped these samples, by job."""
    selector = server.feed({gpus_by: gpus, owners_by: owners})
    return read_from(PrometheusSource(server.url, selector=selector, days=days))
