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

from webhook.cli.version import version

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "demo": "webhook.cli.demo:demo",
    "check": "webhook.cli.check:check",
    "test": "webhook.cli.test:run_tests",
    "explain": "webhook.cli.explain:explain",
    "undo": "webhook.cli.undo:undo",
    "fairshare": "webhook.cli.fairshare:fairshare",
    "audit": "webhook.cli.audit:audit",
    "rightsize": "webhook.cli.rightsize:rightsize",
    "lint": "webhook.cli.lint:lint_objects",
    "capacity": "webhook.cli.capacity:capacity",
    "place": "webhook.cli.place:place",
    "simulate": "webhook.cli.simulate:simulate",
    "policy": "webhook.cli.policy:policy",
    "usage": "webhook.cli.usage:usage",
    "accounting": "webhook.cli.accounting:accounting",
    "install": "webhook.cli.install:install_command",
    "uninstall": "webhook.cli.install:uninstall_command",
    "doctor": "webhook.cli.doctor:doctor",
    "serve": "webhook.cli.serving:serve",
    "completion": "webhook.cli.completion:completion",
    "version": "webhook.cli.version:version",
}
"""Commands in the order of the help page, and where they are: a function, or a group of commands."""

PROGRAM = "rightslice"
COMPLETE = "_RIGHTSLICE_COMPLETE"
"""The variable in which a shell asks what could come next; typer reads it."""

ABOUT = "Judge, right-size and place GPU pods on their way into Kubernetes."


def run() -> None:
    """Run the command that was called, and end with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper at start
    completing = bool(os.environ.get(COMPLETE))
    if sys.argv[1:] == ["version"] and not completing:
        version()
        return
    app_for(sys.argv[1:])(prog_name=PROGRAM if completing else called_as(sys.argv[0]))


def called_as(program: str) -> str:
    """The name for help pages: as kubectl's plug-in, or by ourselves."""
    return "kubectl rightslice" if Path(program).name.startswith("kubectl-") else PROGRAM


def app_for(arguments: list[str]) -> typer.Typer:
    """The app with the command that is called, or with every command where none is."""
    wanted = next((each for each in arguments if not each.startswith("-")), "")
    return build([wanted] if wanted in COMMANDS else list(COMMANDS))


def build(names: list[str]) -> typer.Typer:
    """The app with these commands."""
    import typer

    app = typer.Typer(
        help=ABOUT,
        add_completion=bool(os.environ.get(COMPLETE)),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        found = _load(COMMANDS[name])
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _root() -> None:
    pass


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
