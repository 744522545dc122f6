"""`.rightslice.yaml`: defaults of commands for a repository, found in the current folder or one above it.

Paths are relative to the file, and flags override it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from webhook.cli.cluster_access import LIVE
from webhook.cli.flags import is_written
from webhook.cli.output import exit_with_error, print_note
from webhook.documents.document import POLICY_BOUNDS, Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation, read_problem
from webhook.policy.validation import validate_document
from webhook.policy.written.values import SpecModel
from webhook.report.code_pages import is_documented
from webhook.report.text import sanitize
from webhook.well_known import DEMO

READS_POLICY_FILES = frozenset({"test", "policy lint"})
"""Commands that read the policies of the file unless files are named: they have no --policies."""

LISTS_POLICIES = frozenset({"policy list", "policy show"})
"""Commands whose --cluster is no place to evaluate pods in: the file does not set it."""

SERVERS = "serve"
"""Processes of a cluster: they have settings of their own, and ignore the file."""

FLAGS = frozenset({"--policies", "--cluster", "--fail-on"})
"""The flags that the file sets, of every command that has them."""

EXAMPLE = "policies: [policies/]"


class ProjectDefaults(SpecModel):
    """The content of the file."""

    policies: tuple[str, ...] = ()
    cluster: str = ""
    fail_on: Literal["deny", "warn", "skipped", "never"] = "deny"


def default_flags(command: Any, names: Sequence[str], file: Path, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return the default flags of a command for typer: those of its flags that the file can set.

    Exits if the file cannot be used. A call that needs nothing of it does not read it.

    Args:
        names: The words that call the command.
        arguments: What follows these words.
    """
    flags = {flag: str(each.name) for each in command.params for flag in each.opts if flag in FLAGS}
    if " ".join(names) in READS_POLICY_FILES:
        flags["--policies"] = "policies"
    if " ".join(names) in LISTS_POLICIES:
        del flags["--cluster"]
    if names[0] == SERVERS or not _needs_any(flags.values(), command, arguments):
        return {}
    print_note(f"note: defaults of {sanitize(str(file))}")
    values = _flag_values(_read(file), file.parent)
    defaults: Mapping[str, Any] = {flags[flag]: value for flag, value in values.items() if flag in flags}
    for name in reversed(names):
        defaults = {name: defaults}
    return defaults


def _needs_any(fields: Iterable[str], command: Any, arguments: Sequence[str]) -> bool:
    """Return whether a call leaves out one of the fields, and prints more than pages of codes and reasons."""
    called = command.make_context(command.name, list(arguments), resilient_parsing=True)
    written = {field for field in called.params if is_written(called, field)}
    if set(fields) <= written:
        return False
    if command.name != "explain" or written & {"filename", "selector"}:
        return True
    return not called.params["every"] and not all(map(is_documented, called.params["explained"] or ()))


def _flag_values(found: ProjectDefaults, folder: Path) -> dict[str, Any]:
    """Return the values of the flags that the file sets."""
    values: dict[str, Any] = {"--fail-on": found.fail_on}
    if found.policies:
        values["--policies"] = [str(folder / each) for each in found.policies]
    if found.cluster:
        values["--cluster"] = found.cluster if found.cluster in (LIVE, DEMO) else str(folder / found.cluster)
    return values


def _read(file: Path) -> ProjectDefaults:
    try:
        with file.open("rb") as opened:
            documents = read_documents(opened.read(POLICY_BOUNDS.size + 1), str(file))
    except OSError as error:
        exit_with_error(f"{sanitize(str(file))}: {read_problem(error)}")
    except DocumentError as error:
        exit_with_error(f"{error.location}: {error.message}")
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        exit_with_error(f"{SourceLocation(str(file))}: must contain one map. Write {EXAMPLE}")
    return _validate(documents[0])


def _validate(document: Document) -> ProjectDefaults:
    errors: list[PolicyFileError] = []
    defaults = validate_document(document, ProjectDefaults, errors)
    if defaults is None:
        exit_with_error("\nerror: ".join(map(str, errors)))
    return defaults
