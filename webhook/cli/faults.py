"""What of the objects that a command is given is a fault: a file that is not there, or is not YAML."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from webhook.audit.manifests import SourceObject, SkippedDocument
from webhook.cli.console import WRONG_INPUT, print_note
from webhook.report.words import sanitize


def report_broken_files(found: Sequence[SourceObject | SkippedDocument]) -> bool:
    """Say what cannot be read, and why. Was there any?"""
    broken = [each for each in found if isinstance(each, SkippedDocument) and each.broken]
    for each in broken:
        print_note(sanitize(f"error: {each.place}: {each.reason}"))
    return bool(broken)


def reject_broken_files(found: Sequence[SourceObject | SkippedDocument]) -> None:
    """Stops the program, with every fault, where something cannot be read: a sum over the rest would be wrong."""
    if report_broken_files(found):
        raise typer.Exit(WRONG_INPUT)
