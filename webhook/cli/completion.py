"""`completion`: the script that teaches a shell to complete our commands and flags."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script

from webhook.cli.console import say

PROGRAM = "rightslice"


class Shell(StrEnum):
    """Shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")]) -> None:
    """Print a shell's completion script, for example: source <(rightslice completion bash)."""
    say([get_completion_script(prog_name=PROGRAM, complete_var="_RIGHTSLICE_COMPLETE", shell=shell.value)])
