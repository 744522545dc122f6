"""Every command that a page shows exists, with every flag it is shown with."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from tests.house.checkout import ROOT, pages, read
from webhook.cli.main import COMMANDS, build_app

CALL = re.compile(r"(?:^\$ |^|`)rightslice ([^`\n]+)", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """The page (or the Makefile), and what follows `rightslice` there."""
    found = [(page, call) for page in pages() for call in CALL.findall(page.read_text(encoding="utf-8"))]
    called = [("Makefile", call) for call in re.findall(r"/rightslice (.*)", read("Makefile"))]
    return called + [(str(page.relative_to(ROOT)), re.split(r" [#>|]", call)[0].strip()) for page, call in found]


@pytest.fixture(scope="module")
def program() -> Any:
    """The whole command line."""
    return get_command(build_app(list(COMMANDS)))


def faults(program: Any, call: str) -> list[str]:
    """What a call names that the program does not have."""
    words = shlex.split(call)
    command = program
    while words and hasattr(command, "get_command"):
        name = words.pop(0)
        command = command.get_command(None, name)
        if command is None:
            return [name]
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]


def test_pages_show_commands() -> None:
    assert {call.split()[0] for page, call in shown() if page == "README.md"} >= {"check", "test", "explain", "audit"}


@pytest.mark.parametrize(("page", "call"), sorted(set(shown())))
def test_a_command_in_a_page_exists(program: Any, page: str, call: str) -> None:
    assert faults(program, call) == [], page


def test_a_command_or_flag_that_does_not_exist_is_seen(program: Any) -> None:
    assert faults(program, "chekc deploy/") == ["chekc"]
    assert faults(program, "policy lnit policies/") == ["lnit"]
    assert faults(program, "check deploy/ --polices policies/") == ["--polices"]
