"""Help pages: examples that the commands understand, and the forms that users of kubectl try."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import INPUTS, Run
from tests.conftest import ROOT
from webhook.cli.help_pages import EXAMPLES
from webhook.cli.main import COMMANDS, build_app


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the names of each command, the command, and its context."""
    pending: list[tuple[str, Any, Any]] = [("", get_command(build_app(list(COMMANDS))), None)]
    while pending:
        names, command, parent = pending.pop()
        context = command.context_class(command, parent=parent, info_name=names.rpartition(" ")[2] or "rightslice")
        children = getattr(command, "commands", {})
        pending += [(f"{names} {name}".strip(), command.get_command(context, name), context) for name in children]
        if not children or (names and command.invoke_without_command):
            yield names, command, context


ALL_COMMANDS = {names: (command, context) for names, command, context in commands()}


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(ALL_COMMANDS)


@pytest.mark.parametrize("names", EXAMPLES)
def test_a_command_understands_its_examples(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    for example in EXAMPLES[names]:
        assert example.startswith(names)
        arguments = re.split(r" [|>] ", example.removeprefix(names))[0].split()
        command.make_context(names, arguments, parent=context.parent)
        assert f"    rightslice {example}" in command.get_help(context)


@pytest.mark.parametrize("names", EXAMPLES)
def test_no_help_page_names_a_type_of_python(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    arguments = command.get_help(context).partition("Arguments:")[2].partition("Options:")[0]
    assert "<str>" not in arguments
    assert "<list" not in arguments


@pytest.mark.parametrize(
    ("tried", "same"),
    [
        (["--version"], ["version"]),
        (["help"], ["--help"]),
        (["help", "check"], ["check", "--help"]),
        (["help", "policy", "lint"], ["policy", "lint", "-h"]),
    ],
    ids=" ".join,
)
def test_other_forms_give_the_same_page(tried: list[str], same: list[str]) -> None:
    assert output_of(tried) == output_of(same) != ""


def output_of(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "webhook.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


FILES_BY_COMMAND = {
    "check": (["check"], ["deploy"], INPUTS),
    "audit": (["audit"], ["cluster.yaml"], INPUTS[:2]),
    "rightsize": (["rightsize"], ["cluster.yaml"], INPUTS[:2]),
    "test": (["test"], ["cases"], []),
    "policy lint": (["policy", "lint"], ["faulty"], []),
    "lint": (["lint"], ["traps.yaml"], []),
    "place": (["place"], ["room/pods.yaml"], ["--cluster", "room/cluster.yaml"]),
}


@pytest.mark.parametrize(("command", "files", "flags"), FILES_BY_COMMAND.values(), ids=FILES_BY_COMMAND)
def test_files_are_arguments_or_given_with_f(
    rightslice: Run, command: list[str], files: list[str], flags: list[str]
) -> None:
    as_arguments, with_flag = rightslice(*command, *files, *flags), rightslice(*command, "-f", *files, *flags)

    assert (with_flag.code, with_flag.out, with_flag.err) == (as_arguments.code, as_arguments.out, as_arguments.err)
    assert with_flag.out


@pytest.mark.parametrize("command", ["check", "place"])
def test_without_a_file_the_error_says_what_to_name(rightslice: Run, command: str) -> None:
    result = rightslice(command)

    assert result.code == 2
    assert "name a file, a folder, or - for standard input" in result.err
