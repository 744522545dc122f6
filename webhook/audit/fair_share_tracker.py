"""Who has had more of the GPUs' time than its share, looked up in a live cluster again and again.

What counts is what `rightslice fairshare` counts. The pods are listed by pages, those that ended too, and none is kept:
a page is reckoned up a few pods at a time, so that whoever shares the event loop has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from webhook.audit.gpu_time import PodLifetime, fair_share_group, gpu_time_of_pod
from webhook.cache.informers import PODS
from webhook.engine.fair_share import rank_fair_shares
from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.backoff import RandomSource
from webhook.kube.decoder import ResourceDecoder
from webhook.kube.reflector import PAGE_SIZE
from webhook.model.fairness import PodGpuTime
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.policy.fair_share import FairShare
from webhook.web.health import HealthCheck

REFRESH_SECONDS = 600.0
"""Between two looks, half of it more or less. The shortest half-life is an hour."""

STALE_SECONDS = 3600.0
"""What could not be looked up for so long says nothing any more."""

NODE_WAIT_SECONDS = 1.0
"""Between two tries until the nodes are known."""

PODS_PER_TURN = 50
"""Pods that are reckoned up before others have their turn."""

SecondsClock = Callable[[], float]


class ShareSnapshot(NamedTuple):
    """What the last look found.

    Attributes:
        when: Seconds since 1970.
        over: Who is over the share.
        groups: How many there are.
    """

    when: float
    over: frozenset[str]
    groups: int


class FairShareTracker:
    """Who is over its share.

    Attributes:
        known: What the last look found that succeeded; None before the first.
        fault: Why the last one did not; "" where it did.
    """

    def __init__(
        self, api: KubeClient, rule: FairShare, fleet: Callable[[], Fleet], random: RandomSource, clock: SecondsClock
    ) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            rule: What use is held against.
            fleet: The nodes of the moment.
            random: Spreads out what many replicas would do at once.
            clock: Seconds since 1970.
        """
        self._api, self._rule, self._fleet, self._random, self._clock = api, rule, fleet, random, clock
        self._decoder: ResourceDecoder[PodLifetime] = ResourceDecoder(f"GET {PODS.path}", PodLifetime)
        self.latest: ShareSnapshot | None = None
        self.error = ""

    def is_over_share(self, pod: Pod) -> bool:
        """Has whoever a pod counts for had more than its share? No, where nothing is known that is new enough."""
        known = self.latest
        if known is None or self._clock() > known.when + STALE_SECONDS:
            return False
        return fair_share_group(pod, self._rule.by) in known.over

    def readiness_check(self) -> HealthCheck:
        """A line of `/readyz?verbose`."""
        known, fault = self.latest, self.error
        if known is None:
            return HealthCheck("fair share", not fault, fault or "not looked up yet", required=False)
        minutes = (self._clock() - known.when) / 60
        says = f"{len(known.over)} of {known.groups} over their share {minutes:.0f} min ago"
        return HealthCheck("fair share", not fault, f"{says}; {fault}" if fault else says, required=False)

    async def run(self) -> None:
        """Look until cancelled."""
        while not self._fleet().nodes:
            await asyncio.sleep(NODE_WAIT_SECONDS)
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS * self._random.uniform(0.5, 1.5))

    async def refresh(self) -> None:
        """Look once. Where the server does not let us, what was known before stays."""
        try:
            uses = [use async for use in self._list_uses(self._fleet())]
        except ApiError as error:
            self.error = str(error)
            return
        now = self._clock()
        found = await asyncio.to_thread(rank_fair_shares, uses, self._rule, now)
        self.latest = ShareSnapshot(now, frozenset(one.group for one in found if one.excess_share > 0), len(found))
        self.error = ""

    async def _list_uses(self, fleet: Fleet) -> AsyncIterator[PodGpuTime]:
        ask = {"limit": str(PAGE_SIZE)}
        while True:
            page = self._decoder.decode_page(await self._api.get_bytes(PODS.path, ask))
            for number, held in enumerate(page.items):
                if number % PODS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if (use := gpu_time_of_pod(held, fleet, self._rule.by)) is not None:
                    yield use
            if not page.continue_token:
                return
            ask["continue"] = page.continue_token
