"""`lint`: traps in LimitRanges and ResourceQuotas themselves, each with the object as it should be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any

import typer

from webhook.audit.manifests import Entry, Passed, objects_in
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, say, tell
from webhook.engine.linting import LINTED, QUOTA, fixed, lint
from webhook.model.findings import Finding
from webhook.model.paths import dotted
from webhook.report.data import as_json, as_yaml
from webhook.report.words import count, shown

Linted = tuple[Entry, list[Finding]]

Files = Annotated[
    list[str],
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Files, folders or - for standard input."),
]
Format = Annotated[
    str, typer.Option("-o", "--output", metavar="FORMAT", help="text, yaml (the corrected objects alone) or json.")
]


def lint_objects(files: Files, output: Format = "text") -> None:
    """Find traps in LimitRanges and ResourceQuotas: what they do is not what they say. Other objects are passed over.

    Each comes with the whole object as it should be, ready to be applied.

    Exit code: 0 no traps, 1 traps, 2 a file or flag is wrong.
    """
    if output not in REPORTS:
        raise typer.BadParameter(f"must be one of {', '.join(REPORTS)}", param_hint="-o")
    found = list(objects_in(files))
    faults = [f"{one.place}: {shown(one.reason)}" for one in found if isinstance(one, Passed) and one.broken]
    entries = [one for one in found if isinstance(one, Entry) and one.data["kind"] in LINTED]
    linted = [(entry, lint(entry.data, _beside(entry, entries))) for entry in entries]
    trapped = [one for one in linted if one[1]]
    say(REPORTS[output](trapped))
    for fault in faults:
        tell(fault)
    traps = sum(len(findings) for _, findings in trapped)
    tell(f"{count(len(entries), 'object')}: {count(traps, 'trap') if traps else 'no traps'}")
    raise typer.Exit(WRONG_INPUT if faults else FINDINGS if trapped else CLEAN)


def _beside(entry: Entry, entries: list[Entry]) -> list[str]:
    """The keys that other quotas of the same namespace count."""
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for other in entries:
        hard = other.data.get("spec", {}).get("hard", {}) if other is not entry else {}
        if other.data["kind"] == QUOTA and isinstance(hard, dict):
            keys[_namespace(other)] += hard
    return keys[_namespace(entry)]


def _namespace(entry: Entry) -> str:
    return str(entry.data.get("metadata", {}).get("namespace", "default"))


def _text(trapped: list[Linted]) -> str:
    lines = []
    for entry, findings in trapped:
        name = entry.data.get("metadata", {}).get("name", "(no name)")
        lines.append(f"{shown(str(entry.place()))}: {entry.data['kind']} {shown(str(name))}")
        lines += [f"  {one.code} {shown(dotted(one.path))}: {shown(one.message)}. {one.fix}" for one in findings]
        lines += ["  Write instead:", *(f"    {line}" for line in as_yaml(fixed(entry.data)).splitlines()), ""]
    return "\n".join(lines)


def _yaml(trapped: list[Linted]) -> str:
    return "---\n".join(as_yaml(fixed(entry.data)) for entry, _ in trapped)


def _json(trapped: list[Linted]) -> str:
    return as_json([_as_data(entry, findings) for entry, findings in trapped])


def _as_data(entry: Entry, findings: list[Finding]) -> Any:
    said = [{"code": f.code, "path": dotted(f.path), "message": f.message, "fix": f.fix} for f in findings]
    return {"place": str(entry.place()), "findings": said, "fixed": fixed(entry.data)}


REPORTS: dict[str, Callable[[list[Linted]], str]] = {"text": _text, "yaml": _yaml, "json": _json}
