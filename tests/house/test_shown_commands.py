"""Every command in a page exists, with all its flags."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from tests.house.checkout import ROOT, pages, read_checkout_file
from webhook.cli.main import COMMANDS, build_app

CALL = re.compile(r"(?:^ *(?:\$ )?|`)rightslice ([^`\n]+)", re.MULTILINE)


def documented_commands() -> list[tuple[str, str]]:
    """Return the commands of the pages and the Makefile: file, and arguments of `rightslice`."""
    texts = {page: page.read_text(encoding="utf-8").replace("\\\n", "") for page in pages()}
    found = [(page, call) for page, text in texts.items() for call in CALL.findall(text)]
    called = [("Makefile", call) for call in re.findall(r"/rightslice (.*)", read_checkout_file("Makefile"))]
    return called + [(str(page.relative_to(ROOT)), re.split(r" [#>|]", call)[0].strip()) for page, call in found]


@pytest.fixture(scope="module")
def program() -> Any:
    """Build the command line."""
    return get_command(build_app(list(COMMANDS)))


def unknown_words(program: Any, call: str) -> list[str]:
    """Return the commands and flags of a call that do not exist."""
    words = shlex.split(call)
    command = program
    while words and hasattr(command, "commands") and not (command.invoke_without_command and words[0].startswith("-")):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]


def test_the_readme_has_commands() -> None:
    assert {call.split()[0] for page, call in documented_commands() if page == "README.md"} >= {
        "check",
        "test",
        "explain",
        "audit",
    }


@pytest.mark.parametrize(("page", "call"), sorted(set(documented_commands())))
def test_a_command_in_a_page_exists(program: Any, page: str, call: str) -> None:
    assert unknown_words(program, call) == [], page


def test_a_command_or_flag_that_does_not_exist_is_found(program: Any) -> None:
    assert unknown_words(program, "chekc deploy/") == ["chekc"]
    assert unknown_words(program, "policy lnit policies/") == ["lnit"]
    assert unknown_words(program, "check deploy/ --polices policies/") == ["--polices"]
