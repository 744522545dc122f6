"""`completion`: print a shell completion script."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from webhook.cli.main import COMPLETION_VARIABLE, PROGRAM, build_app_for


class CompletionShell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    shell: Annotated[CompletionShell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a shell completion script. For example: source <(rightslice completion bash).

    Exit code: 0, 2 invalid input.
    """
    os.environ[COMPLETION_VARIABLE] = f"source_{shell.value}"
    build_app_for([])(args=[], prog_name=PROGRAM)
