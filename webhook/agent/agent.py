"""The agent's round: look at the GPUs, ask who holds them, and write what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Protocol

import msgspec

from webhook.agent.advertising import Advertiser
from webhook.agent.counts import Counts
from webhook.agent.holding import held
from webhook.agent.nvml import DriverReplacedError
from webhook.agent.podresources import Holders, KubeletAwayError
from webhook.agent.publishing import Publisher
from webhook.errors import ApiError
from webhook.kube.pace import Random
from webhook.model.gpunodes import GPUNodeStatus
from webhook.telemetry.logs import Logger
from webhook.web.checks import Check

LOOK_SECONDS = 30.0
"""After which a look counts as hung. No second one begins before it ends."""

PARTS = ("nvml", "kubelet", "GPUNode", "Node", "Lease")

HUNG = "NVML does not answer"
CRASHED = "NVML cannot be read"


class Looks(Protocol):
    """What is used of `Machine`."""

    def look(self) -> GPUNodeStatus:
        """What is there now."""


class Kubelet(Protocol):
    """What is used of `PodResources`."""

    async def holders(self) -> Holders:
        """Who holds which device now."""


class Beats(Protocol):
    """What is used of `Heartbeat`."""

    async def beat(self) -> bool:
        """Renew it if it is time."""


class Agent:
    """The agent of one node.

    Attributes:
        counts: Its figures.
        replaced: Set once the driver is another version than this process has loaded: it has to end.
    """

    def __init__(
        self,
        machine: Looks,
        kubelet: Kubelet,
        publisher: Publisher,
        advertiser: Advertiser | None,
        log: Logger,
        random: Random,
        *,
        poll: float = 10.0,
        patience: float = LOOK_SECONDS,
        heartbeat: Beats | None = None,
    ) -> None:
        """Prepare.

        Args:
            machine: The GPUs.
            kubelet: Who holds them.
            publisher: Where it is written.
            advertiser: What the Node itself says; None: nothing.
            log: Who is told.
            random: Spreads the rounds of many nodes.
            poll: Seconds between two rounds.
            patience: Seconds after which a look counts as hung.
            heartbeat: Renewed while what is written holds; None: nobody is told.
        """
        self._machine, self._kubelet, self._publisher, self._advertiser = machine, kubelet, publisher, advertiser
        self._log, self._random, self._poll, self._patience = log, random, poll, patience
        self._heartbeat = heartbeat
        self._looking: asyncio.Future[GPUNodeStatus] | None = None
        self._seen: GPUNodeStatus | None = None
        self._holders: Holders | None = None
        self._troubles: dict[str, str] = {}
        self.counts = Counts()
        self.replaced = asyncio.Event()

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(self._poll * self._random.uniform(0.9, 1.1))

    async def round(self) -> None:
        """One look, one question, and at most one write each."""
        status = await self._look()
        await self._ask()
        if status is None or self._holders is None:
            return  # without holders nobody could tell what is free
        whole = held(status, self._holders)
        self.counts.status = whole
        await self._write("GPUNode", lambda: self._publisher.publish(whole))
        if self._advertiser is not None:
            advertiser = self._advertiser
            await self._write("Node", lambda: advertiser.advertise(whole))
        if not self._publisher.stands(whole):
            return
        self._went("GPUNode", "")
        if self._heartbeat is not None and not self._troubles.get("kubelet"):
            await self._write("Lease", self._heartbeat.beat)

    def checks(self) -> Sequence[Check]:
        """What the agent says of itself. It is ready without any of it: there may be no GPU here."""
        status = self._seen
        seen = f"{len(status.gpus)} seen" if status is not None else "not looked at yet"
        gpus = Check("gpus", good=status is not None, says=(status.message if status else "") or seen, must=False)
        parts = ((part, self._troubles.get(part, "")) for part in PARTS)
        return [gpus, *(Check(part, good=not why, says=why or "ok", must=False) for part, why in parts)]

    async def _look(self) -> GPUNodeStatus | None:
        """What NVML sees; while it hangs or cannot be read, what it saw last, and that it is so."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if self._looking is None:
            self._looking = beside(loop, self._machine.look)
        try:
            self._seen = await asyncio.wait_for(asyncio.shield(self._looking), self._patience)
        except TimeoutError:
            self.counts.looks["hung"] += 1
            return self._blind(HUNG)
        except DriverReplacedError as error:
            self._looking = None
            self._went("nvml", f"the driver was replaced: {error}")
            self.counts.looks["replaced"] += 1
            self.replaced.set()
            return self._seen
        except Exception as error:
            self._looking = None
            self.counts.looks["crashed"] += 1
            return self._crashed(error)
        self._looking = None
        self.counts.looks["good" if not self._seen.message else "less"] += 1
        self.counts.look_seconds = loop.time() - start
        self._went("nvml", self._seen.message)
        return self._seen

    def _crashed(self, error: Exception) -> GPUNodeStatus:
        """Tell of a fault that nobody foresaw, by its kind alone: its text may be another each time, or long."""
        why = f"{CRASHED}: {type(error).__name__}"
        if self._troubles.get("nvml") != why:
            self._log.error("crashed", part="nvml", exc_info=error)
        return self._blind(why)

    def _blind(self, why: str) -> GPUNodeStatus:
        """What was seen last, and why no more is seen."""
        self._went("nvml", why)
        return msgspec.structs.replace(self._seen or GPUNodeStatus(), message=why)

    async def _ask(self) -> None:
        """Who holds what. While the kubelet is away, its pods run on with what they have."""
        try:
            self._holders = await self._kubelet.holders()
        except KubeletAwayError as error:
            self.counts.kubelet["away"] += 1
            self._went("kubelet", str(error))
            return
        self.counts.kubelet["good"] += 1
        self._went("kubelet", "")

    async def _write(self, what: str, write: Callable[[], Awaitable[bool]]) -> None:
        try:
            written = await write()
        except ApiError as error:
            self.counts.writes["bad"] += 1
            self._went(what, str(error))
            return
        if written:
            self.counts.writes["good"] += 1
            self._went(what, "")

    def _went(self, part: str, why: str) -> None:
        """Say each trouble once, and when it is over."""
        if self._troubles.get(part, "") == why:
            return
        self._troubles[part] = why
        if why:
            self._log.warning("trouble", part=part, why=why)
        else:
            self._log.info("well again", part=part)


def beside(loop: asyncio.AbstractEventLoop, look: Callable[[], GPUNodeStatus]) -> asyncio.Future[GPUNodeStatus]:
    """Call something that may hang for good, in a thread that the end of the process does not wait for."""
    found: asyncio.Future[GPUNodeStatus] = loop.create_future()

    def tell(error: Exception | None, status: GPUNodeStatus | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        elif status is not None:
            found.set_result(status)

    def run() -> None:
        outcome: tuple[Exception | None, GPUNodeStatus | None]
        try:
            outcome = None, look()
        except Exception as error:
            outcome = error, None
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(tell, *outcome)

    Thread(target=run, name="nvml", daemon=True).start()
    return found
