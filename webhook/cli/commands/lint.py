"""`lint`: traps in LimitRanges and ResourceQuotas themselves, each with the object as it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import DEMO
from webhook.cli import flags
from webhook.cli.inputs import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.output import CLEAN, FINDINGS, WRONG_INPUT, exit_with_error, print_note, print_result
from webhook.engine.linting import LINTED_KINDS, find_object_errors, fix_object, lint_all_objects
from webhook.model.field_paths import format_path
from webhook.model.findings import Finding
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import pluralize, sanitize

LintResult = tuple[SourceObject, list[Finding], dict[str, Any]]
"""An object, its traps, and what to write instead."""

DEVICE_CLASS = "DeviceClass"

LintFiles = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="LintFiles, folders or - for standard input."),
]
LintCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="What is stored in a cluster: live, a file or folder of `kubectl get -o yaml`, or demo.",
    ),
]
LintNamespace = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=flags.validate_namespace_name,
        help="With --cluster: this namespace only. Default: all.",
    ),
]
LintFormat = Annotated[
    str, typer.Option("-o", "--output", metavar="FORMAT", help="text, yaml (the corrected objects alone) or json.")
]


def lint_command(
    files: LintFiles = None,
    cluster: LintCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: LintNamespace = None,
    output: LintFormat = "text",
) -> None:
    """Find traps in LimitRanges and ResourceQuotas: what they do is not what they say. Other objects are passed over.

    Each comes with the whole object as it should be, ready to be applied. With --cluster live those of a cluster are
    read, in which nothing is changed. What cannot be read is told, and an object that no API server takes is a fault.

    Exit code: 0 no traps, 1 traps, 2 a file or flag is wrong, 3 the cluster did not answer.
    """
    if output not in REPORTS:
        raise typer.BadParameter(f"must be one of {', '.join(REPORTS)}", param_hint="-o")
    found = _lint_inputs(files or (), cluster, ClusterFlags(kubeconfig, context), namespace)
    entries = [one for one in found if isinstance(one, SourceObject) and one.data["kind"] in LINTED_KINDS]
    passed = [one for one in found if isinstance(one, SkippedDocument)] + [
        one for each in entries for one in _schema_errors(each)
    ]
    faults = [one for one in passed if one.broken]
    trapped = _lint_entries(entries, _device_class_names(found) if cluster else [])
    print_result(REPORTS[output](trapped))
    for one in passed:
        print_note(f"{sanitize(str(one.place))}: {sanitize(one.reason)}")
    traps = sum(len(findings) for _, findings, _ in trapped)
    wrong = f", {pluralize(len(faults), 'fault')}" if faults else ""
    print_note(f"{pluralize(len(entries), 'object')}: {pluralize(traps, 'trap') if traps else 'no traps'}{wrong}")
    raise typer.Exit(WRONG_INPUT if faults else FINDINGS if trapped else CLEAN)


def _device_class_names(found: Sequence[SourceObject | SkippedDocument]) -> list[str]:
    """The names of the DeviceClasses that were read."""
    metadata = (
        _metadata_map(one.data) for one in found if isinstance(one, SourceObject) and one.data["kind"] == DEVICE_CLASS
    )
    return [str(each["name"]) for each in metadata if each.get("name")]


def _lint_entries(entries: Sequence[SourceObject], classes: Sequence[str]) -> list[LintResult]:
    """The objects with traps whose corrected form an API server takes."""
    each = zip(entries, lint_all_objects([entry.data for entry in entries], classes), strict=True)
    linted = [(entry, findings, fix_object(entry.data, findings, classes)) for entry, findings in each if findings]
    return [one for one in linted if not any(wrong.rejected for wrong in find_object_errors(one[2]))]


def _lint_inputs(
    files: Sequence[str], cluster: str | None, reach: ClusterFlags, namespace: str | None
) -> list[SourceObject | SkippedDocument]:
    """What is to be looked at. Stops the program where the flags do not say one thing."""
    if bool(files) == bool(cluster):
        exit_with_error("which LimitRanges and quotas? Write -f FILE, or --cluster live, a snapshot or demo")
    if cluster == LIVE:
        with open_live_cluster(reach) as live:
            found = list(live.limit_objects(namespace))
            if namespace and not found and live.lacks_namespace(namespace):
                exit_with_error(f"-n {namespace}: no such namespace in this cluster")
            return [*found, *live.device_classes()]
    reject_access_flags(reach)
    if cluster:
        return _snapshot_objects(cluster, namespace)
    if namespace:
        exit_with_error("-n says what to read of a cluster: write --cluster instead of -f")
    return list(read_objects(files))


def _snapshot_objects(name: str, namespace: str | None) -> list[SourceObject | SkippedDocument]:
    found = list(read_objects([str(bundled_folder("examples") / "cluster") if name == DEMO else name]))
    if not namespace:
        return found
    if not any(isinstance(one, SourceObject) and namespace in _object_namespaces(one.data) for one in found):
        exit_with_error(f"-n {namespace}: no such namespace in {sanitize(name)}")
    return [one for one in found if isinstance(one, SkippedDocument) or _belongs_to_namespace(one.data, namespace)]


def _belongs_to_namespace(data: dict[str, Any], namespace: str) -> bool:
    return data["kind"] == DEVICE_CLASS or _object_namespaces(data)[0] == namespace


def _object_namespaces(data: dict[str, Any]) -> tuple[str, str]:
    """The namespace that an object is in, and the one that it is."""
    known = _metadata_map(data)
    return str(known.get("namespace", "default")), str(known.get("name")) if data["kind"] == "Namespace" else ""


def _metadata_map(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _schema_errors(entry: SourceObject) -> list[SkippedDocument]:
    return [
        SkippedDocument(entry.place(one.path), f"{format_path(one.path)}: {one.message}", broken=one.rejected)
        for one in find_object_errors(entry.data)
    ]


def _lint_text(trapped: list[LintResult]) -> str:
    lines = []
    for entry, findings, instead in trapped:
        name = _metadata_map(entry.data).get("name", "(no name)")
        lines.append(f"{sanitize(str(entry.place()))}: {entry.data['kind']} {sanitize(str(name))}")
        lines += [
            f"  {one.code} {sanitize(format_path(one.path))}: {sanitize(one.message)}. {one.fix}" for one in findings
        ]
        lines += ["  Write instead:", *(f"    {line}" for line in yaml_text(instead).splitlines()), ""]
    return "\n".join(lines)


def _lint_yaml(trapped: list[LintResult]) -> str:
    return "---\n".join(yaml_text(instead) for _, _, instead in trapped)


def _lint_json(trapped: list[LintResult]) -> str:
    return json_text([_lint_document(*one) for one in trapped])


def _lint_document(entry: SourceObject, findings: list[Finding], instead: dict[str, Any]) -> Any:
    said = [{"code": f.code, "path": format_path(f.path), "message": f.message, "fix": f.fix} for f in findings]
    return {"place": str(entry.place()), "findings": said, "fixed": instead}


REPORTS: dict[str, Callable[[list[LintResult]], str]] = {"text": _lint_text, "yaml": _lint_yaml, "json": _lint_json}
