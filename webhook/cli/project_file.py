"""`.rightslice.yaml`: defaults of commands for a repository, found in the current folder or one above it.

Paths are relative to the file, and flags override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from webhook.cache.snapshot import DEMO
from webhook.cli.cluster_access import LIVE
from webhook.cli.output import exit_with_error, print_note
from webhook.documents.document import POLICY_BOUNDS, Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.policy.validation import validate_document
from webhook.policy.written.values import SpecModel
from webhook.report.text import sanitize

COMMANDS = frozenset({"check", "explain", "audit", "rightsize", "layout", "fairshare", "place", "capacity", "lint"})
"""Commands with --cluster, which use it."""

POLICY_COMMANDS = frozenset({"lint", "list", "show"})
"""Those of `policy` that read policies, and use only these of it."""

EXAMPLE = "policies: [policies/]"


class ProjectDefaults(SpecModel):
    """The content of the file."""

    policies: tuple[str, ...] = ()
    cluster: str = ""
    fail_on: Literal["deny", "warn", "skipped", "never"] = "deny"


def default_flags(command: str, subcommand: str, file: Path) -> Mapping[str, Any]:
    """Return the default flags of a command, by its name. Exits if the file cannot be used."""
    is_policy = command == "policy" and subcommand in POLICY_COMMANDS
    if command not in COMMANDS and not is_policy:
        return {}
    print_note(f"note: defaults of {sanitize(str(file))}")
    found = _read(file)
    defaults: dict[str, Any] = {"fail_on": found.fail_on}
    if found.policies:
        defaults["policies"] = [str(file.parent / each) for each in found.policies]
    if is_policy:
        return {command: {subcommand: defaults}}
    if found.cluster:
        defaults["cluster"] = found.cluster if found.cluster in (LIVE, DEMO) else str(file.parent / found.cluster)
    return {command: defaults}


def _read(file: Path) -> ProjectDefaults:
    try:
        with file.open("rb") as opened:
            documents = read_documents(opened.read(POLICY_BOUNDS.size + 1), str(file))
    except OSError as error:
        exit_with_error(f"{sanitize(str(file))}: cannot be read: {error.strerror or error}")
    except DocumentError as error:
        exit_with_error(f"{error.location}: {error.message}")
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        exit_with_error(f"{SourceLocation(str(file))}: must contain one map. Write {EXAMPLE}")
    return _validate(documents[0])


def _validate(document: Document) -> ProjectDefaults:
    errors: list[PolicyFileError] = []
    defaults = validate_document(document, ProjectDefaults, errors)
    if defaults is None:
        for each in errors:
            print_note(f"{each.location}  error  {each.message}")
        exit_with_error(f"{sanitize(document.file)} cannot be used")
    return defaults
