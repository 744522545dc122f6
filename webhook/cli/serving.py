"""`serve`: the long-running processes, as a group of commands."""

from __future__ import annotations

import typer

from webhook.cli.agent import serve_agent
from webhook.cli.serve import serve_webhook

serve = typer.Typer(help="Run a process that serves: the webhook, or the agent of a node.", no_args_is_help=True)
serve.command("webhook")(serve_webhook)
serve.command("agent")(serve_agent)


@serve.callback()
def _serve() -> None:
    pass
