"""Who has had more of the GPUs' time than its share, looked up in a live cluster again and again.

What counts is what `rightslice fairshare` counts. The pods are listed by pages, those that ended too, and none is kept:
a page is reckoned up a few pods at a time, so that whoever shares the event loop has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from webhook.audit.using import HeldPod, group_of, use_of
from webhook.cache.following import PODS
from webhook.engine.fairness import standings
from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.kube.decoding import Decoder
from webhook.kube.pace import Random
from webhook.kube.watching import PAGE
from webhook.model.fairness import Use
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.policy.fairness import FairShare
from webhook.web.checks import Check
from webhook.web.plaintext import one_line

EVERY_SECONDS = 600.0
"""Between two looks, half of it more or less. The shortest half-life is an hour."""

STALE_SECONDS = 3600.0
"""What could not be looked up for so long says nothing any more."""

FIRST_SECONDS = 1.0
"""Between two tries until the nodes are known."""

AT_ONCE = 50
"""Pods that are reckoned up before others have their turn."""

Seconds = Callable[[], float]


class Known(NamedTuple):
    """What the last look found.

    Attributes:
        when: Seconds since 1970.
        over: Who is over the share.
        groups: How many there are.
    """

    when: float
    over: frozenset[str]
    groups: int


class Sharing:
    """Who is over its share.

    Attributes:
        known: What the last look found that succeeded; None before the first.
        fault: Why the last one did not; "" where it did.
    """

    def __init__(self, api: Api, rule: FairShare, fleet: Callable[[], Fleet], random: Random, clock: Seconds) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            rule: What use is held against.
            fleet: The nodes of the moment.
            random: Spreads out what many replicas would do at once.
            clock: Seconds since 1970.
        """
        self._api, self._rule, self._fleet, self._random, self._clock = api, rule, fleet, random, clock
        self._decoder: Decoder[HeldPod] = Decoder(f"GET {PODS.path}", HeldPod)
        self.known: Known | None = None
        self.fault = ""

    def over(self, pod: Pod) -> bool:
        """Has whoever a pod counts for had more than its share? No, where nothing is known that is new enough."""
        known = self.known
        if known is None or self._clock() > known.when + STALE_SECONDS:
            return False
        return group_of(pod, self._rule.by) in known.over

    def check(self) -> Check:
        """A line of `/readyz?verbose`."""
        known, fault = self.known, one_line(self.fault)
        if known is None:
            return Check("fair share", not fault, fault or "not looked up yet", must=False)
        minutes = (self._clock() - known.when) / 60
        says = f"{len(known.over)} of {known.groups} over their share {minutes:.0f} min ago"
        return Check("fair share", not fault, f"{says}; {fault}" if fault else says, must=False)

    async def run(self) -> None:
        """Look until cancelled."""
        while not self._fleet().nodes:
            await asyncio.sleep(FIRST_SECONDS)
        while True:
            await self.look()
            await asyncio.sleep(EVERY_SECONDS * self._random.uniform(0.5, 1.5))

    async def look(self) -> None:
        """Look once. Where the server does not let us, what was known before stays."""
        try:
            uses = [use async for use in self._uses(self._fleet())]
        except ApiError as error:
            self.fault = str(error)
            return
        now = self._clock()
        found = await asyncio.to_thread(standings, uses, self._rule, now)
        self.known = Known(now, frozenset(one.group for one in found if one.over > 0), len(found))
        self.fault = ""

    async def _uses(self, fleet: Fleet) -> AsyncIterator[Use]:
        ask = {"limit": str(PAGE)}
        while True:
            page = self._decoder.page(await self._api.read(PODS.path, ask))
            for number, held in enumerate(page.items):
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
                if (use := use_of(held, fleet, self._rule.by)) is not None:
                    yield use
            if not page.more:
                return
            ask["continue"] = page.more
