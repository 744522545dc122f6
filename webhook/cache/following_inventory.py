"""What placement ranks, followed in a live cluster: nodes, the pods on them, and the reports of their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from webhook.cache.following import GPUNODES, AGE_CHECK_SECONDS, NODES, PODS, WatchEventSink, supervise
from webhook.cache.inventory import NodeInventory
from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.pace import RandomSource
from webhook.kube.watching import WatchStatus, Reflector

INVENTORY_REST_SECONDS = 0.1
"""Between two watches. A scheduler asks a second after a pod has gone, and not again if it is refused then."""


class InventoryInformers:
    """The watches that feed an inventory.

    Attributes:
        states: How each watch is doing.
    """

    def __init__(self, api: KubeClient, inventory: NodeInventory, random: RandomSource, told: WatchEventSink) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            inventory: Written by nobody else.
            random: Spreads out what many replicas would do at once.
            told: Who is told what goes wrong.
        """
        self._sink = told
        watch = partial(Reflector, api, random=random, broke=self._on_watch_error, crashed=self._on_writer_crash, rest=INVENTORY_REST_SECONDS)
        self._watches: list[Reflector[Any]] = [
            watch(NODES, inventory.nodes),
            watch(PODS, inventory.pods),
            watch(GPUNODES, inventory.gpunodes),
        ]
        self.states: tuple[WatchStatus, ...] = tuple(each.status for each in self._watches)

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed the kind that was confirmed longest ago."""
        return asyncio.get_running_loop().time() - min(state.last_contact for state in self.states)

    async def run(self, rank: Callable[[], Awaitable[None]]) -> None:
        """Go on until cancelled.

        Args:
            rank: Runs beside the watches once everything was there.
        """
        async with asyncio.TaskGroup() as tasks:
            for each in self._watches:
                tasks.create_task(supervise(each.status.name, each.run, self._sink))
            while not all(state.synced for state in self.states):
                await asyncio.sleep(AGE_CHECK_SECONDS / 10)
            tasks.create_task(supervise("ranking", rank, self._sink))

    def _on_watch_error(self, state: WatchStatus, error: ApiError) -> None:
        self._sink.record_watch_error(state.name, str(error))

    def _on_writer_crash(self, state: WatchStatus, error: Exception) -> None:
        self._sink.record_crash(state.name, "", error)
