"""The commands of `rightslice` in the pages run, and print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.page_folder import make_page_folder
from tests.house.shown_blocks import ShownCommand, commands_by_page

NEEDS_CLUSTER = re.compile(
    r"^rightslice (?:serve|install|uninstall|doctor|layout status|usage record|policy list --cluster live)\b"
    r"|--write\b(?! layout)|--prometheus http"
)
"""Commands that start a server, change a cluster or read a Prometheus."""

COMMANDS = {
    page: [each for each in commands if each.program == "rightslice" and not NEEDS_CLUSTER.search(each.text)]
    for page, commands in commands_by_page().items()
}


@pytest.mark.parametrize("page", sorted(page for page, commands in COMMANDS.items() if commands))
def test_the_commands_of_a_page_run_in_their_order(
    page: str, rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example cluster stands in for a live one."""
    make_page_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS[page]:
        ran = rightslice(*("demo" if word == "live" else word for word in command.words))
        assert ran.code in (0, 1), f"{command.text}\n{ran.err}"
        assert is_shown(command, ran.out), f"{command.text}\n{ran.out}"
        if command.target:
            Path(command.target).write_text(ran.out, encoding="utf-8")


def is_shown(command: ShownCommand, printed: str) -> bool:
    """Return whether the lines that a page shows are printed in their order; it may leave lines out."""
    rest = iter(printed.splitlines())
    return all(line in rest for line in command.output.splitlines())


def test_a_line_that_is_not_printed_is_found() -> None:
    assert is_shown(ShownCommand("x", "a\nc\n"), "a\nb\nc\n")
    assert not is_shown(ShownCommand("x", "c\na\n"), "a\nb\nc\n")
