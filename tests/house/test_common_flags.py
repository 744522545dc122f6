"""The flags of kubectl are those of every report, except where docs/commands.md gives a reason."""

from __future__ import annotations

import re
from typing import Any

from tests.cli.conftest import all_commands
from tests.house.checkout import read_checkout_file

COMMON = ("-f", "-n", "-A", "-l", "--sort-by", "--no-headers")
FORMATS = ("table", "wide", "name", "json", "yaml")
NO_FILES = {"ui", "serve webhook", "serve extender"}
"""Processes that read a snapshot as long as they run: a file or a folder, never standard input."""


def flags_of(command: Any) -> dict[str, str]:
    """Return the flags of a command, with their help."""
    return {flag: each.help or "" for each in command.params for flag in each.opts if flag.startswith("-")}


def missing_flags(command: Any) -> set[str]:
    """Return the common flags and formats that a report lacks; without -n it needs no -A."""
    flags = flags_of(command)
    formats = re.findall(r"[a-z]+", flags["-o"].partition(";")[0])
    needed = {*COMMON} - ({"-A"} if "-n" not in flags else set())
    return (needed - flags.keys()) | {f"-o {form}" for form in FORMATS if form not in formats}


def documented_exceptions() -> set[tuple[str, str]]:
    """Return the commands and flags of the table of exceptions."""
    table = read_checkout_file("docs/commands.md").partition("| Flag | Not with | Because |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    quoted = [[re.findall("`([^`]+)`", cell) for cell in cells[:2]] for cells in rows]
    return {(command, flag) for flags, commands in quoted for flag in flags for command in commands}


def test_a_report_has_the_common_flags_or_a_reason_why_not() -> None:
    reports = {" ".join(words): each for words, each, _ in all_commands() if "json" in flags_of(each).get("-o", "")}

    assert len(reports) > 15
    assert {(name, flag) for name, each in reports.items() for flag in missing_flags(each)} == documented_exceptions()


def test_every_command_that_reads_files_or_a_cluster_takes_files_with_the_same_flag() -> None:
    without = set()
    for words, command, _ in all_commands():
        named = [str(each.metavar) for each in command.params if not each.opts[0].startswith("-")]
        reads = "--cluster" in flags_of(command) or any("FILE" in each for each in named)
        if reads and not {"-f", "--filename"} <= flags_of(command).keys():
            without.add(" ".join(words))
    assert without == NO_FILES
