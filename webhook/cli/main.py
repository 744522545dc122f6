"""The command line: `rightslice`, and `kubectl rightslice`.

One file a command. Only the command that is called is imported, and typer itself (which brings pydantic) only
where there are flags to read, so that a short answer comes at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webhook.cli.commands.version import version_command

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "demo": "webhook.cli.commands.demo:demo_command",
    "check": "webhook.cli.commands.check:check_command",
    "test": "webhook.cli.commands.test:policy_test_command",
    "explain": "webhook.cli.commands.explain:explain_command",
    "undo": "webhook.cli.commands.undo:undo_command",
    "fairshare": "webhook.cli.commands.fairshare:fairshare_command",
    "audit": "webhook.cli.commands.audit:audit_command",
    "rightsize": "webhook.cli.commands.rightsize:rightsize_command",
    "lint": "webhook.cli.commands.lint:lint_command",
    "capacity": "webhook.cli.commands.capacity:capacity_command",
    "place": "webhook.cli.commands.place:place_command",
    "simulate": "webhook.cli.commands.simulate:simulate_command",
    "policy": "webhook.cli.commands.policy:policy",
    "usage": "webhook.cli.commands.usage:usage",
    "accounting": "webhook.cli.commands.accounting:accounting",
    "install": "webhook.cli.commands.install:install_command",
    "uninstall": "webhook.cli.commands.install:uninstall_command",
    "doctor": "webhook.cli.commands.doctor:doctor_command",
    "serve": "webhook.cli.commands.serve:serve",
    "completion": "webhook.cli.commands.completion:completion_command",
    "version": "webhook.cli.commands.version:version_command",
}
"""Commands in the order of the help page, and where they are: a function, or a group of commands."""

PROGRAM = "rightslice"
COMPLETION_VARIABLE = "_RIGHTSLICE_COMPLETE"
"""The variable in which a shell asks what could come next; typer reads it."""

HELP = "Judge, right-size and place GPU pods on their way into Kubernetes."


def run() -> None:
    """Run the command that was called, and end with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper at start
    completing = bool(os.environ.get(COMPLETION_VARIABLE))
    if sys.argv[1:] == ["version"] and not completing:
        version_command()
        return
    build_app_for(sys.argv[1:])(prog_name=PROGRAM if completing else program_name(sys.argv[0]))


def program_name(program: str) -> str:
    """The name for help pages: as kubectl's plug-in, or by ourselves."""
    return "kubectl rightslice" if Path(program).name.startswith("kubectl-") else PROGRAM


def build_app_for(arguments: list[str]) -> typer.Typer:
    """The app with the command that is called, or with every command where none is."""
    wanted = next((each for each in arguments if not each.startswith("-")), "")
    return build_app([wanted] if wanted in COMMANDS else list(COMMANDS))


def build_app(names: list[str]) -> typer.Typer:
    """The app with these commands."""
    import typer

    app = typer.Typer(
        help=HELP,
        add_completion=bool(os.environ.get(COMPLETION_VARIABLE)),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root_callback)
    for name in names:
        found = _load_command(COMMANDS[name])
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _root_callback() -> None:
    pass


def _load_command(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
