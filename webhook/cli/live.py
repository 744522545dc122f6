"""What commands share that ask a live cluster: the connection, and how they end where it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from webhook.cli.console import NO_ANSWER, stop
from webhook.errors import AccessError, ApiError
from webhook.kube.api import Api

T = TypeVar("T")


def with_api(kubeconfig: str | None, context: str | None, do: Callable[[Api], Awaitable[T]]) -> T:
    """Do something with an API server. Stops the program where it does not answer, or refuses."""

    async def run() -> T:
        async with await Api.connect(kubeconfig, context) as api:
            return await do(api)

    try:
        return asyncio.run(run())
    except (AccessError, ApiError) as error:
        stop(str(error), NO_ANSWER)
