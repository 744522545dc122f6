"""Flags that reports have, except for some commands, and why; docs/commands.md shows the same table."""

from __future__ import annotations

from typing import NamedTuple


class UnsupportedFlags(NamedTuple):
    """Flags that make no sense for some commands, and the reason."""

    flags: tuple[str, ...]
    commands: tuple[str, ...]
    reason: str


ROW_FLAGS = ("--sort-by", "--no-headers")
FORMATS = ("-o table", "-o wide", "-o name")
LONG_FLAGS = {"--filename": "-f", "--namespace": "-n", "--all-namespaces": "-A", "--selector": "-l"}

UNSUPPORTED = (
    UnsupportedFlags(
        ("-f",), ("doctor", "layout status", "accounting check"), "only a live cluster can be checked, not its files"
    ),
    UnsupportedFlags(
        ("-f",),
        ("ui", "serve webhook", "serve extender"),
        "a snapshot is a file or folder that stays: write `--cluster FILE`, or `--cluster DIR` for several files",
    ),
    UnsupportedFlags(
        ("-n",),
        ("capacity", "layout status", "doctor", "policy lint", "policy list", "policy show"),
        "nodes, an installation and policies have no namespace",
    ),
    UnsupportedFlags(("-n", "-l"), ("test",), "each test states the namespace and the labels of its pod"),
    UnsupportedFlags(
        ("-A",), ("accounting check",), "one namespace is checked, in which a pod is created as a dry run"
    ),
    UnsupportedFlags(
        ("-l",),
        ("doctor", "accounting check", "policy lint", "policy list", "policy show"),
        "checks have no labels, and labels of policies are not read",
    ),
    UnsupportedFlags(
        ROW_FLAGS,
        ("test", "place", "simulate", "policy diff", "policy lint"),
        "the order has a meaning, of cases, nodes, figures, kinds of change or lines of a file: `-o json` has the rows",
    ),
    UnsupportedFlags(ROW_FLAGS, ("explain", "undo"), "an answer about a pod or a code has no rows"),
    UnsupportedFlags(FORMATS, ("explain",), "an answer about a pod or a code has no rows"),
    UnsupportedFlags(FORMATS[:2], ("undo",), "it prints fields for a manifest"),
    UnsupportedFlags((*ROW_FLAGS, *FORMATS), ("policy show",), "it prints one object"),
    UnsupportedFlags(
        ("-f", "-n", "-l", *ROW_FLAGS, *FORMATS), ("version",), "it prints one fact, in the fields of `kubectl version`"
    ),
    UnsupportedFlags(FORMATS, ("policy lint",), "it prints errors of files, which may have no object"),
)


def unsupported_reason(command: str, flag: str) -> str:
    """Return why a command does not have a flag that others have; "" if there is no reason."""
    flag = LONG_FLAGS.get(flag, flag)
    return next((each.reason for each in UNSUPPORTED if flag in each.flags and command in each.commands), "")
