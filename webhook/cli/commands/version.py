"""`version`: print the version, for people or with the fields of `kubectl version`."""

from __future__ import annotations

from typing import Annotated

from webhook import __version__
from webhook.cli import flags
from webhook.cli.main import VERSION_LINE
from webhook.cli.output import document_reports, parse_targets, write_reports

FORMATS = ("text", "json", "yaml")

VersionOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def version_command(output: VersionOutput = None) -> None:
    """Print the version.

    Exit code: 0, 2 invalid input.
    """
    document = {"clientVersion": {"gitVersion": __version__}}
    reports = {"text": lambda: VERSION_LINE, **document_reports(lambda: document)}
    write_reports(parse_targets(output, FORMATS), reports)
