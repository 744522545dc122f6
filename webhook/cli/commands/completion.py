"""`completion`: print a shell completion script."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from webhook.cli.main import COMPLETER, COMPLETION_VARIABLE, PROGRAM, build_app_for
from webhook.cli.output import print_result

KUBECTL_COMPLETER = f"""\
#!/bin/sh
# Completes `kubectl rightslice` in every shell that completes kubectl (1.26 or newer). Save it in a folder of PATH:
#   kubectl rightslice completion bash > ~/.local/bin/{COMPLETER}
#   chmod +x ~/.local/bin/{COMPLETER}
exec kubectl-rightslice __complete "$@"
"""


class CompletionShell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    called: typer.Context,
    shell: Annotated[CompletionShell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a shell completion script. For example: source <(rightslice completion bash).

    kubectl completes a plugin by a program kubectl_complete-rightslice in PATH. `kubectl rightslice completion bash`
    prints that program, for all shells, with the commands that install it.

    Exit code: 0, 2 invalid input.
    """
    if called.find_root().info_name != PROGRAM:
        print_result(KUBECTL_COMPLETER)
        return
    os.environ[COMPLETION_VARIABLE] = f"source_{shell.value}"
    build_app_for([])(args=[], prog_name=PROGRAM)
