"""What commands share that ask the API server of a live cluster: the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from webhook.cli.reaching import reached
from webhook.kube.api import Api

T = TypeVar("T")


def with_api(kubeconfig: str | None, context: str | None, do: Callable[[Api], Awaitable[T]]) -> T:
    """Do something with an API server. Stops the program where it cannot be reached, or refuses."""

    async def run() -> T:
        async with await Api.connect(kubeconfig, context) as api:
            return await do(api)

    with reached():
        return asyncio.run(run())
