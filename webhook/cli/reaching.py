"""Which live cluster: the flags, with kubectl's names and meaning; and how a command ends that reaches none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from webhook.cli.console import NO_ANSWER, exit_with_error
from webhook.errors import AccessError, ApiError

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
