"""Which live cluster: the flags, with kubectl's names and meaning; and how a command ends that reaches none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

from webhook.cli.output import NO_ANSWER, exit_with_error
from webhook.errors import AccessError, ApiError
from webhook.kube.api import KubeClient

T = TypeVar("T")


Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="For a live cluster. Default: KUBECONFIG, in a pod its service account, else ~/.kube/config.",
    ),
]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig.")]


@contextmanager
def exit_on_cluster_errors() -> Iterator[None]:
    """Stops the program: wrong input where a kubeconfig cannot be used, no answer where the API server gives none."""
    try:
        yield
    except AccessError as error:
        exit_with_error(str(error))
    except ApiError as error:
        exit_with_error(str(error), NO_ANSWER)


def call_api(kubeconfig: str | None, context: str | None, do: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Do something with an API server. Stops the program where it cannot be reached, or refuses."""

    async def run() -> T:
        async with await KubeClient.connect(kubeconfig, context) as api:
            return await do(api)

    with exit_on_cluster_errors():
        return asyncio.run(run())
