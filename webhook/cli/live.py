"""What commands share that ask the API server of a live cluster: the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from webhook.cli.reaching import exit_on_cluster_errors
from webhook.kube.api import KubeClient

T = TypeVar("T")


def call_api(kubeconfig: str | None, context: str | None, do: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Do something with an API server. Stops the program where it cannot be reached, or refuses."""

    async def run() -> T:
        async with await KubeClient.connect(kubeconfig, context) as api:
            return await do(api)

    with exit_on_cluster_errors():
        return asyncio.run(run())
