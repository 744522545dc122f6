"""Access to the API server of a live cluster for commands, and the exit code if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, print_note
from webhook.errors import AccessError, ApiError, ApiUnreachable, RightsliceError
from webhook.report.text import sanitize
from webhook.well_known import DEMO

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader
    from webhook.kube.api import KubeClient

T = TypeVar("T")

UNREACHABLE_HINT = (
    "Check that the cluster runs and this machine reaches it (kubectl cluster-info), or choose another one with "
    "--kubeconfig and --context"
)
_HINT_BY_STATUS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "Log in again, or choose other credentials with --kubeconfig and --context",
    HTTPStatus.FORBIDDEN: "Ask for this permission, or choose other credentials with --context (kubectl auth can-i)",
}

LIVE = "live"
"""The value of --cluster for a live cluster."""


class ClusterFlags(NamedTuple):
    """The flags --kubeconfig and --context."""

    kubeconfig: str | None = None
    context: str | None = None


DEFAULT_ACCESS = ClusterFlags()


def choose_cluster(cluster: str | None, files: Sequence[str] = ()) -> str | None:
    """Return the cluster to read: by default that of the current context, unless files are named.

    Exits if it is probably meant as a context, as kubectl's --cluster is part of one.
    """
    if cluster and cluster.replace("-", "").isalnum() and cluster not in (LIVE, DEMO) and not Path(cluster).exists():
        must = f"must be live, demo or a snapshot, found {sanitize(cluster)!r}, which is not a file"
        exit_with_error(f"--cluster: {must}. For a context of the kubeconfig write --context {sanitize(cluster)}")
    if cluster or files:
        return cluster
    print_note("note: reads the cluster of the current context; --cluster names a snapshot, or demo for an example")
    return LIVE


def reject_access_flags(access: ClusterFlags, flag: str = "--cluster") -> None:
    """Exit if --kubeconfig or --context is given although `flag` does not select a live cluster."""
    if access != DEFAULT_ACCESS:
        exit_with_error(f"--kubeconfig and --context select a live cluster: write {flag} live")


def call_api(access: ClusterFlags, call: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Run a coroutine with a client. Exits if the API server cannot be reached or rejects a request."""
    from webhook.kube.api import KubeClient  # the HTTP client is slow to import

    async def run_call() -> T:
        async with await KubeClient.connect(*access) as api:
            return await call(api)

    with _exit_on_api_errors():
        return asyncio.run(run_call())


@contextmanager
def open_live_cluster(access: ClusterFlags) -> Iterator[ClusterReader]:
    """Open a live cluster for reading. Exits if it cannot be reached or its objects cannot be used."""
    from webhook.audit.cluster_reader import ClusterReader  # the HTTP client is slow to import

    try:
        with _exit_on_api_errors(), ClusterReader(*access) as cluster:
            yield cluster
    except RightsliceError as error:
        exit_with_error(str(error))


@contextmanager
def _exit_on_api_errors() -> Iterator[None]:
    """Exit with 2 if the kubeconfig cannot be used, and with 3 if the API server does not answer."""
    try:
        yield
    except AccessError as error:
        exit_with_error(str(error))
    except ApiError as error:
        exit_with_error(f"{error}. {api_error_hint(error)}".removesuffix(" "), EXIT_NO_ANSWER)


def api_error_hint(error: ApiError) -> str:
    """Return what to do about an error of the API server; "" if its own message says it."""
    if isinstance(error, ApiUnreachable):
        return UNREACHABLE_HINT
    return _HINT_BY_STATUS.get(error.status, "")
