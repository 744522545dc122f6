"""Fixtures: commands run in the folder of fixture files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from webhook.cli.commands import layout
from webhook.cli.main import COMMANDS, COMPLETION_VARIABLE, build_app, build_app_for

FILES = Path(__file__).parent / "files"
JUNE = "2026-06-01T00:00:00Z"
INPUTS = ["--policies", "policies", "--cluster", "cluster.yaml", "--now", JUNE]
"""The policies, cluster and time of most tests."""

BUSY_MACHINE_SECONDS = 600.0
"""The time limit for a step of a plan, which an idle machine solves in a tenth of a second: what is printed must not
depend on the machine."""


class CommandResult:
    """The exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def all_commands() -> Iterator[tuple[list[str], Any, Any]]:
    """Yield the words that call each command of the program, the command, and its context."""
    yield from _commands_of(get_command(build_app(list(COMMANDS))), [], None)


def _commands_of(command: Any, words: list[str], parent: Any) -> Iterator[tuple[list[str], Any, Any]]:
    context = command.context_class(command, parent=parent, info_name=words[-1] if words else "rightslice")
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield words, command, context
    for name in inner:
        yield from _commands_of(command.get_command(context, name), [*words, name], context)


Run = Callable[..., CommandResult]


@pytest.fixture
def rightslice(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the folder of fixture files, with `stdin` as its input."""
    monkeypatch.chdir(FILES)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv(COMPLETION_VARIABLE, "")
    monkeypatch.setattr(layout, "STEP_SECONDS", BUSY_MACHINE_SECONDS)

    def run(*arguments: str, stdin: bytes | str = b"") -> CommandResult:
        result = CliRunner().invoke(
            build_app_for(list(arguments)), list(arguments), input=stdin, prog_name="rightslice"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return CommandResult(result.exit_code, result.stdout, result.stderr)

    return run
