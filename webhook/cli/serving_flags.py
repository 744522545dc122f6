"""The flags of every process that serves HTTPS; each may be a RIGHTSLICE_ variable too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM; read again on change.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
SelfSigned = Annotated[bool | None, typer.Option("--self-signed", help="Make a certificate for this run instead.")]
ClientName = Annotated[
    str | None, typer.Option("--client-name", metavar="NAME", help="The name that their certificate must have.")
]
DrainSeconds = Annotated[
    float | None,
    typer.Option("--drain-seconds", help="Serve on after SIGTERM. Default: 10, on a loopback address 0."),
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")
]
MaxConnections = Annotated[int | None, typer.Option("--max-connections", help="Default: 2000.")]
MaxInFlight = Annotated[int | None, typer.Option("--max-in-flight", help="Default: 256.")]
