"""Reading, as tests ask for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from tests.usage.exporter import Sample
from tests.usage.prometheus import PrometheusServer
from webhook.usage.prometheus import Prometheus
from webhook.usage.reading import Reading, read
from webhook.usage.source import Source


def read_from(source: Source, clock: Callable[[], float] = time.time) -> Reading:
    """All that a Prometheus has, as one source names it."""

    async def reading() -> Reading:
        async with Prometheus(source) as asked:
            return await read(asked, clock)

    return asyncio.run(reading())


def reading_of(
    server: PrometheusServer,
    gpus: Iterable[Sample],
    owners: Iterable[Sample] = (),
    *,
    days: int = 1,
    gpus_by: str = "dcgm",
    owners_by: str = "ksm",
) -> Reading:
    """What is read of a Prometheus that scraped these samples, by jobs of these names."""
    selector = server.feed({gpus_by: gpus, owners_by: owners})
    return read_from(Source(server.url, selector=selector, days=days))
