"""What placement ranks, followed in a live cluster: nodes, the pods on them, and the reports of their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from webhook.cache.following import GPUNODES, LOOK_SECONDS, NODES, PODS, Told, kept
from webhook.cache.inventory import Inventory
from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.kube.pace import Random
from webhook.kube.watching import State, Watch

REST_SECONDS = 0.1
"""Between two watches. A scheduler asks a second after a pod has gone, and not again if it is refused then."""


class InventoryFollowing:
    """The watches that feed an inventory.

    Attributes:
        states: How each watch is doing.
    """

    def __init__(self, api: Api, inventory: Inventory, random: Random, told: Told) -> None:
        """Prepare; nothing is asked of the server yet.

        Args:
            api: The API server.
            inventory: Written by nobody else.
            random: Spreads out what many replicas would do at once.
            told: Who is told what goes wrong.
        """
        self._told = told
        watch = partial(Watch, api, random=random, broke=self._broke, crashed=self._crashed, rest=REST_SECONDS)
        self._watches: list[Watch[Any]] = [
            watch(NODES, inventory.nodes),
            watch(PODS, inventory.pods),
            watch(GPUNODES, inventory.gpunodes),
        ]
        self.states: tuple[State, ...] = tuple(each.state for each in self._watches)

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed the kind that was confirmed longest ago."""
        return asyncio.get_running_loop().time() - min(state.heard for state in self.states)

    async def run(self, rank: Callable[[], Awaitable[None]]) -> None:
        """Go on until cancelled.

        Args:
            rank: Runs beside the watches once everything was there.
        """
        async with asyncio.TaskGroup() as tasks:
            for each in self._watches:
                tasks.create_task(kept(each.state.name, each.run, self._told))
            while not all(state.synced for state in self.states):
                await asyncio.sleep(LOOK_SECONDS / 10)
            tasks.create_task(kept("ranking", rank, self._told))

    def _broke(self, state: State, error: ApiError) -> None:
        self._told.watch_broke(state.name, str(error))

    def _crashed(self, state: State, error: Exception) -> None:
        self._told.crashed(state.name, "", error)
