"""The flags that say which live cluster is meant, with kubectl's names and meaning."""

from __future__ import annotations

from typing import Annotated

import typer

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="For a live cluster. Default: KUBECONFIG, in a pod its service account, else ~/.kube/config.",
    ),
]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig.")]
