"""`completion`: the script that teaches a shell to complete our commands and flags."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from webhook.cli.main import COMPLETE, PROGRAM, app_for


class Shell(StrEnum):
    """Shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")]) -> None:
    """Print a shell's completion script, for example: source <(rightslice completion bash)."""
    os.environ[COMPLETE] = f"source_{shell.value}"
    app_for([])(args=[], prog_name=PROGRAM)
