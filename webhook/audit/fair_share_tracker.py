"""Tracks which namespaces or queues have had more GPU time than their share, by listing a live cluster regularly.

It counts as `rightslice fairshare` does. Pods are listed page by page, including ended ones, and not stored. Pages are
processed a few pods at a time, so that they do not block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import NamedTuple

from webhook.audit.gpu_time import PodLifetime, fair_share_group, gpu_time_of_pod
from webhook.cache.informers import PODS
from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.decoder import ResourceDecoder
from webhook.kube.reflector import PAGE_SIZE, RandomSource
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.policy.fair_share import FairShare, PodGpuTime, rank_fair_shares
from webhook.web.health import HealthCheck

REFRESH_SECONDS = 600.0
"""Average time between two refreshes, randomized by half of it. The shortest half-life is an hour."""

STALE_SECONDS = 3600.0
"""Older results are not used."""

NODE_WAIT_SECONDS = 1.0
"""Time between two checks whether nodes are known."""

PODS_PER_TURN = 50
"""Pods to process before other tasks run."""

SecondsClock = Callable[[], float]


class ShareSnapshot(NamedTuple):
    """The result of a refresh.

    Attributes:
        when: Seconds of a clock that is never set.
    """

    when: float
    over: frozenset[str]
    groups: int


class FairShareTracker:
    """Knows which groups are over their share.

    Attributes:
        latest: The last successful result; None before the first.
        error: Why the last refresh failed; "" if it did not.
    """

    def __init__(
        self,
        api: KubeClient,
        rule: FairShare,
        fleet: Callable[[], Fleet],
        random: RandomSource,
        now: SecondsClock,
        clock: SecondsClock = monotonic,
    ) -> None:
        """Store the dependencies; `run` starts tracking.

        Args:
            random: Keeps replicas from refreshing together.
            now: Unix seconds, to compare with times of pods.
            clock: Seconds of a clock that is never set: results become stale by it.
        """
        self._api, self._rule, self._fleet, self._random = api, rule, fleet, random
        self._now, self._clock = now, clock
        self._decoder: ResourceDecoder[PodLifetime] = ResourceDecoder(f"GET {PODS.path}", PodLifetime)
        self.latest: ShareSnapshot | None = None
        self.error = ""

    def is_over_share(self, pod: Pod) -> bool:
        """Return whether a pod's group is over its share; False if there is no recent result."""
        latest = self.latest
        if latest is None or self._clock() > latest.when + STALE_SECONDS:
            return False
        return fair_share_group(pod, self._rule.by) in latest.over

    def readiness_check(self) -> HealthCheck:
        """Return the line for `/readyz?verbose`."""
        latest, error = self.latest, self.error
        if latest is None:
            return HealthCheck("fair share", not error, error or "not computed yet", required=False)
        minutes = (self._clock() - latest.when) / 60
        text = f"{len(latest.over)} of {latest.groups} over their share {minutes:.0f} min ago"
        return HealthCheck("fair share", not error, f"{text}; {error}" if error else text, required=False)

    async def run(self) -> None:
        """Refresh regularly until cancelled."""
        while not self._fleet().nodes:
            await asyncio.sleep(NODE_WAIT_SECONDS)
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS * self._random.uniform(0.5, 1.5))

    async def refresh(self) -> None:
        """Refresh once. If the API server returns an error, the previous result is kept."""
        try:
            periods = [each async for each in self._list_gpu_time(self._fleet())]
        except ApiError as error:
            self.error = str(error)
            return
        listed_at = self._clock()
        shares = await asyncio.to_thread(rank_fair_shares, periods, self._rule, self._now())
        over = frozenset(one.group for one in shares if one.excess_share > 0)
        self.latest = ShareSnapshot(listed_at, over, len(shares))
        self.error = ""

    async def _list_gpu_time(self, fleet: Fleet) -> AsyncIterator[PodGpuTime]:
        params = {"limit": str(PAGE_SIZE)}
        while True:
            page = self._decoder.decode_page(await self._api.get_bytes(PODS.path, params))
            for number, lifetime in enumerate(page.items):
                if number % PODS_PER_TURN == 0:
                    await asyncio.sleep(0)
                if (gpu_time := gpu_time_of_pod(lifetime, fleet, self._rule.by)) is not None:
                    yield gpu_time
            if not page.continue_token:
                return
            params["continue"] = page.continue_token
