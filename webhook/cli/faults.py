"""What of the objects that a command is given is a fault: a file that is not there, or is not YAML."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from webhook.audit.manifests import Entry, Passed
from webhook.cli.console import WRONG_INPUT, tell
from webhook.report.words import shown


def tell_faults(found: Sequence[Entry | Passed]) -> bool:
    """Say what cannot be read, and why. Was there any?"""
    broken = [each for each in found if isinstance(each, Passed) and each.broken]
    for each in broken:
        tell(shown(f"error: {each.place}: {each.reason}"))
    return bool(broken)


def refuse_faults(found: Sequence[Entry | Passed]) -> None:
    """Stops the program, with every fault, where something cannot be read: a sum over the rest would be wrong."""
    if tell_faults(found):
        raise typer.Exit(WRONG_INPUT)
