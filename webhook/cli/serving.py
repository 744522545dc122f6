"""`serve`: the long-running processes, as a group of commands."""

from __future__ import annotations

import typer

from webhook.cli.serve import serve_webhook

serve = typer.Typer(help="Run the admission server.", no_args_is_help=True)
serve.command("webhook")(serve_webhook)


@serve.callback()
def _serve() -> None:
    pass
