"""The flags that say who is asked what GPUs were seen to do, for whoever asks a Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PrometheusCa = Annotated[
    Path | None,
    typer.Option("--prometheus-ca", metavar="FILE", help="Authorities of its certificate, PEM. Default: the system's."),
]
PrometheusTokenFile = Annotated[
    Path | None, typer.Option("--prometheus-token-file", metavar="FILE", help="A bearer token; read for each load.")
]
PrometheusUser = Annotated[
    str | None, typer.Option("--prometheus-user", metavar="NAME", help="Basic auth: who we are.")
]
PrometheusPasswordFile = Annotated[
    Path | None, typer.Option("--prometheus-password-file", metavar="FILE", help="Basic auth: the password.")
]
PrometheusSelector = Annotated[
    str | None,
    typer.Option(
        "--prometheus-selector",
        metavar="MATCHERS",
        help="""What all series must match, where it has those of several clusters: 'cluster="a"'.""",
    ),
]
PrometheusDays = Annotated[int | None, typer.Option("--prometheus-days", help="How far back is looked. Default: 7.")]
