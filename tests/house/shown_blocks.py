"""Blocks of commands and output in the pages, and the commands in them."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from tests.house.checkout import ROOT, pages

LANGUAGES = ("", "console", "sh", "bash")
PROGRAMS = {
    *("rightslice", "make", "kubectl", "helm", "docker", "skopeo", "cosign", "sha256sum", "pip", ".venv/bin/python"),
    *("install", "ln", "mkdir", "sh", "jq", "cp", "export"),
}
"""Programs whose names open a block of commands."""

FIRST_HOUR = "docs/first-hour.md"
"""The page whose commands one test runs in their order, on one cluster: tests/cluster/test_first_hour.py."""

RECIPES = "docs/recipes/"
"""The folder of the pages whose commands tests/cli/test_recipes.py runs."""

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_VARIABLES = re.compile(r"^(?:[A-Z_]+=\S+ )+")
_COMMENT = re.compile(r"(?:^| +)# .*$")


class ShownCommand(NamedTuple):
    """One command, and the lines of output shown below it.

    Attributes:
        text: On one line, without variables before it and a comment after it.
    """

    text: str
    output: str = ""

    @property
    def program(self) -> str:
        """Return the name of the program."""
        return self.text.split()[0]

    @property
    def words(self) -> list[str]:
        """Return the arguments, up to the next program of a pipe or a redirection."""
        words = shlex.split(self.text)[1:]
        end = next((place for place, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
        return words[:end]

    @property
    def target(self) -> str:
        """Return the file that its output is redirected to; "" for none."""
        _, _, after = self.text.partition(" > ")
        return after.strip()


class ShownBlock(NamedTuple):
    """A block of a page that has no language of data."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[ShownCommand]:
        """Return its commands; none if it shows only text."""
        text = re.sub(r" *\\\n *", " ", self.text)
        if re.search(r"^\$ ", text, re.MULTILINE):
            return [_command(*part.split("\n", 1)) for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
        found = [_command(line) for line in _joined(text)]
        return found if found and found[0].program in PROGRAMS else []


def _command(line: str, output: str = "") -> ShownCommand:
    return ShownCommand(_VARIABLES.sub("", _COMMENT.sub("", line)).strip(), output)


def _joined(text: str) -> list[str]:
    """Return the lines of a block, with those inside of quotes joined."""
    lines: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        if lines and lines[-1].count("'") % 2:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return [line for line in lines if not line.lstrip().startswith("#")]


def shown_blocks() -> list[ShownBlock]:
    """Return every block of all pages."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            if block[2] in LANGUAGES:
                line = text[: block.start()].count("\n") + 1
                indented = re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE)
                found.append(ShownBlock(page.relative_to(ROOT).as_posix(), line, indented))
    return found


def commands_by_page() -> dict[str, list[ShownCommand]]:
    """Return the commands of each page in their order, except those of FIRST_HOUR and RECIPES."""
    blocks = [block for block in shown_blocks() if not block.page.startswith((FIRST_HOUR, RECIPES))]
    pages_with_blocks = sorted({block.page for block in blocks})
    return {page: commands_of([each for each in blocks if each.page == page]) for page in pages_with_blocks}


def commands_of(blocks: list[ShownBlock]) -> list[ShownCommand]:
    """Return the commands of some blocks."""
    return [command for block in blocks for command in block.commands]
