"""The flags of kubectl are those of every report, except where docs/commands.md gives a reason."""

from __future__ import annotations

import re
from typing import Any

from tests.cli.conftest import all_commands
from tests.house.checkout import read_checkout_file
from webhook.cli.unsupported_flags import UNSUPPORTED

COMMON = ("-f", "-n", "-A", "-l", "--sort-by", "--no-headers")
FORMATS = ("table", "wide", "name", "json", "yaml")
PROCESSES = {"ui", "serve webhook", "serve extender"}
"""Commands that are no reports, and read a snapshot that stays as long as they run."""


def flags_of(command: Any) -> dict[str, str]:
    """Return the flags of a command, with their help."""
    return {flag: each.help or "" for each in command.params for flag in each.opts if flag.startswith("-")}


def missing_flags(command: Any) -> set[str]:
    """Return the common flags and formats that a report lacks; without -n it needs no -A."""
    flags = flags_of(command)
    formats = re.findall(r"[a-z]+", flags["-o"].partition(";")[0])
    needed = {*COMMON} - ({"-A"} if "-n" not in flags else set())
    return (needed - flags.keys()) | {f"-o {form}" for form in FORMATS if form not in formats}


REASONS = {(command, flag): each.reason for each in UNSUPPORTED for flag in each.flags for command in each.commands}


def table_of_exceptions() -> list[str]:
    """Return the rows of the page's table of flags that some reports do not have."""
    table = read_checkout_file("docs/commands.md").partition("| Flag | Not with | Because |")[2].partition("\n\n")[0]
    return table.splitlines()[2:]


def test_a_report_has_the_common_flags_or_a_reason_why_not() -> None:
    reports = {" ".join(words): each for words, each, _ in all_commands() if "json" in flags_of(each).get("-o", "")}

    assert len(reports) > 15
    missing = {(name, flag) for name, each in reports.items() for flag in missing_flags(each)}
    assert missing | {(name, "-f") for name in PROCESSES} == set(REASONS)


def test_the_page_has_the_reasons_of_the_errors() -> None:
    rows = [
        f"| {', '.join(f'`{flag}`' for flag in each.flags)} | {', '.join(f'`{name}`' for name in each.commands)} | "
        f"{each.reason} |"
        for each in UNSUPPORTED
    ]
    assert table_of_exceptions() == rows


def test_every_command_that_reads_files_or_a_cluster_takes_files_with_the_same_flag() -> None:
    without = set()
    for words, command, _ in all_commands():
        named = [str(each.metavar) for each in command.params if not each.opts[0].startswith("-")]
        reads = "--cluster" in flags_of(command) or any("FILE" in each for each in named)
        if reads and not {"-f", "--filename"} <= flags_of(command).keys():
            without.add(" ".join(words))
    assert without == PROCESSES


def test_every_command_that_takes_files_takes_them_as_arguments_too() -> None:
    without = set()
    for words, command, _ in all_commands():
        arguments = [str(each.metavar) for each in command.params if not each.opts[0].startswith("-")]
        arguments += [getattr(command, "subcommand_metavar", "")]
        if "-f" in flags_of(command) and not any("FILE" in each for each in arguments):
            without.add(" ".join(words))
    assert without == {"policy diff"}, "its two arguments are the policies"
