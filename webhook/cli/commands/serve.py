"""`serve`: the long-running processes, as a group of commands. Only the one that is called is imported.

An agent runs on every node with GPUs, and need not hold in memory what judges pods.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

PROCESSES = {
    "webhook": ("webhook.cli.commands.serve_webhook", "serve_webhook"),
    "extender": ("webhook.cli.commands.serve_extender", "serve_extender"),
    "agent": ("webhook.cli.commands.serve_agent", "serve_agent"),
}
"""In the order of the help page, and where they are."""


class ServeGroup(TyperGroup):
    """The group, which loads a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the group's own signature
        """All of them."""
        return list(PROCESSES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the group's own signature
        """The one of this name; None where there is none."""
        if cmd_name not in PROCESSES:
            return None
        module, function = PROCESSES[cmd_name]
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(cmd_name)(getattr(import_module(module), function))
        return typer.main.get_command(alone)


serve = typer.Typer(
    cls=ServeGroup,
    help="Run a process that serves: the webhook, the scheduler's extender, or the agent of a node.",
    no_args_is_help=True,
)


@serve.callback()
def _serve_callback() -> None:
    pass
