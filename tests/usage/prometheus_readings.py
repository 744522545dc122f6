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
    """Everything that a source selects in a Prometheus."""

    async def reading() -> PrometheusReading:
        async with PrometheusClient(source) as asked:
            return await read_histories(asked, clock)

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
    """The usage read from a Prometheus that scraped these samples, by job."""
    selector = server.feed({gpus_by: gpus, owners_by: owners})
    return read_from(PrometheusSource(server.url, selector=selector, days=days))
