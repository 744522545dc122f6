"""`lint`: find misleading settings in LimitRanges and ResourceQuotas, and print the corrected objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import typer

from webhook.audit.object_files import SkippedDocument, SourceObject, read_objects
from webhook.audit.pod_audit import audit_claims
from webhook.cli import flags
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.inputs import note_demo, read_cluster_view, report_broken_files, snapshot_path
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    RowFlags,
    exit_with_error,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.selection import select_objects
from webhook.engine.linting import LINTED_KINDS, find_device_problems, fix_object, lint_all_objects
from webhook.engine.linting.validation import find_object_errors, find_rejections
from webhook.errors import ApiError
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import format_path, map_at
from webhook.model.findings import Finding
from webhook.report.check import kubectl_name
from webhook.report.serialization import json_text, location_document, yaml_text
from webhook.report.tables import Column, Table
from webhook.report.text import pluralize, sanitize, without_style

DEVICE_CLASS = "DeviceClass"

LintCluster = Annotated[str | None, flags.cluster_option(f"The objects of a cluster: {flags.CLUSTER_HELP}.")]
LintSelector = Annotated[str, flags.selector_option("LimitRanges and ResourceQuotas")]
LintNamespace = Annotated[str | None, flags.namespace_option("With --cluster: only this namespace. Default: all.")]
FORMATS = ("text", "table", "wide", "name", "yaml", "json")
LintOutput = Annotated[
    list[str] | None, flags.output_option(FORMATS, "table has a row per object, yaml only the corrected objects")
]


class LintResult(NamedTuple):
    """An object, its findings, and the corrected object; None of a claim, which has no single correction."""

    source: SourceObject
    findings: Sequence[Finding]
    fixed: dict[str, Any] | None = None


def lint_command(
    called: typer.Context,
    paths: flags.Paths = None,
    filename: flags.Filenames = None,
    cluster: LintCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: LintNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: LintSelector = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: LintOutput = None,
) -> None:
    """Find misleading LimitRanges and ResourceQuotas.

    Finds settings that do not do what they appear to do. With --cluster, waiting resource claims and claim templates
    are reviewed too. Other objects are skipped.

    Each finding about a LimitRange or ResourceQuota includes the whole corrected object, ready to apply. A live cluster
    is read and not changed. Unreadable files, and objects that no API server accepts, are errors.

    Exit code: 0 no findings, 1 findings, 2 invalid input, 3 the cluster did not answer.
    """
    targets, selection = parse_targets(output, FORMATS), select_objects(selector=selector)
    namespace = None if all_namespaces else namespace
    files = flags.join_paths(paths, filename)
    cluster = flags.files_or_cluster(called, files, cluster)
    note_demo(cluster)
    documents = _lint_inputs(files, cluster, ClusterFlags(kubeconfig, context), namespace)
    objects = [each for each in documents if isinstance(each, SourceObject)]
    linted = [each for each in objects if each.data["kind"] in LINTED_KINDS]
    selection.note_none_of(linted)
    selected = [each for each in linted if selection.selects(each.data)]
    skipped = [each for each in documents if isinstance(each, SkippedDocument)]
    for each in selected:
        for error in find_object_errors(each.data):
            reason = f"{format_path(error.path)}: {error.message}"
            skipped.append(SkippedDocument(each.locate(error.path), reason, invalid=error.rejected))
    classes = [map_at(each.data, "metadata") for each in objects if cluster and each.data["kind"] == DEVICE_CLASS]
    results = _lint_objects(linted, [str(each["name"]) for each in classes if each.get("name")])
    results = [each for each in results if selection.selects(each.source.data)]
    has_devices = any(each.data["kind"] in (DEVICE_CLASS, "ResourceSlice") for each in objects)
    reviews_devices = bool(has_devices and cluster) and not selection.labels
    view = _view_of_cluster(str(cluster), ClusterFlags(kubeconfig, context)) if reviews_devices else None
    claims = list(_lint_claims(view, namespace)) if view is not None else []
    rows = RowFlags(sort_by, no_headers)
    results = list(rows.sort(LINTED, results + claims, _lint_document))
    reports = {
        **rows.reports(LINTED, results, _kubectl_name, without_style),
        "text": lambda: _lint_text(results),
        "yaml": lambda: "---\n".join(yaml_text(each.fixed) for each in results if each.fixed is not None),
        "json": lambda: json_text([_lint_document(each) for each in results]),
    }
    write_reports(targets, reports)
    for problem in find_device_problems(view.devices.pools, view.classes, view.fleet) if view is not None else ():
        print_note(sanitize(f"note: {problem.summary}: {problem.advice}"))
    report_broken_files(skipped)
    findings, errors = sum(len(result.findings) for result in results), sum(each.invalid for each in skipped)
    totals = pluralize(findings, "finding") if findings else "no findings"
    totals += f", {pluralize(errors, 'error')}" if errors else ""
    if not no_headers:
        print_note(f"{pluralize(len(selected) + len(claims), 'object')}: {totals}")
    if files and (other := sorted({each.data["kind"] for each in objects if each.data["kind"] not in LINTED_KINDS})):
        print_note(f"note: not checked: {sanitize(', '.join(other))}. lint checks {', '.join(sorted(LINTED_KINDS))}")
    raise typer.Exit(EXIT_INVALID_INPUT if errors else EXIT_FINDINGS if results else EXIT_OK)


LINTED = Table[LintResult](
    (
        Column("", lambda each: each.source.data["kind"], "Kind"),
        Column("", lambda each: _text(each, "namespace"), "Namespace"),
        Column("", lambda each: _text(each, "name"), "Name"),
        Column("", lambda each: ",".join(dict.fromkeys(found.code for found in each.findings)), "Findings"),
        Column("", lambda each: str(each.source.locate()), "Location"),
        Column("", lambda each: "; ".join(found.fix for found in each.findings), "Fix", terminal=False),
    )
)


def _text(result: LintResult, field: str) -> str:
    return str(map_at(result.source.data, "metadata").get(field) or "")


def _kubectl_name(result: LintResult) -> str:
    data = result.source.data
    return kubectl_name(str(data["apiVersion"]), str(data["kind"]), str(map_at(data, "metadata").get("name")))


def _lint_objects(sources: Sequence[SourceObject], classes: Sequence[str]) -> list[LintResult]:
    """Return the objects with findings whose corrected form an API server accepts."""
    findings_of_each = lint_all_objects([source.data for source in sources], classes)
    results = [
        LintResult(source, findings, fix_object(source.data, findings, classes))
        for source, findings in zip(sources, findings_of_each, strict=True)
        if findings
    ]
    return [each for each in results if each.fixed is None or not any(find_rejections(each.fixed))]


def _lint_claims(view: ClusterView, namespace: str | None) -> Iterator[LintResult]:
    """Yield the claims that wait for devices, and the templates, with which something is wrong."""
    from webhook.audit.cluster_reader import object_of_cluster  # the HTTP client is slow to import

    for result in audit_claims(view):
        if namespace in (None, result.namespace):
            metadata = {"name": result.name, "namespace": result.namespace}
            source = object_of_cluster({"apiVersion": result.api_version, "metadata": metadata}, result.kind)
            yield LintResult(source, [each.finding for each in result.findings])


def _view_of_cluster(cluster: str, access: ClusterFlags) -> ClusterView | None:
    return _view_of_live_claims(access) if cluster == LIVE else read_cluster_view(cluster, {}, access)


def _view_of_live_claims(access: ClusterFlags) -> ClusterView | None:
    """Return a live cluster; None, with a note, if it does not permit listing what is needed."""
    with open_live_cluster(access) as live:
        try:
            return live.view()
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            print_note(f"note: resource claims are not reviewed: {sanitize(str(error))}")
            return None


def _lint_inputs(
    files: Sequence[str], cluster: str | None, access: ClusterFlags, namespace: str | None
) -> list[SourceObject | SkippedDocument]:
    """Read the objects to lint. Exits if the flags are ambiguous."""
    if cluster == LIVE:
        with open_live_cluster(access) as live:
            found = list(live.limit_objects(namespace))
            if namespace and not found and live.lacks_namespace(namespace):
                exit_with_error(f"-n {namespace}: no such namespace in this cluster")
            return [*found, *live.device_classes()]
    reject_access_flags(access)
    if cluster:
        return _snapshot_objects(cluster, namespace)
    if namespace:
        exit_with_error("-n selects a namespace of a cluster: write --cluster instead of files")
    return list(read_objects(files))


def _snapshot_objects(name: str, namespace: str | None) -> list[SourceObject | SkippedDocument]:
    documents = list(read_objects([snapshot_path(name)]))
    if not namespace:
        return documents
    if not any(isinstance(each, SourceObject) and namespace in _object_namespaces(each.data) for each in documents):
        exit_with_error(f"-n {namespace}: no such namespace in {sanitize(name)}")
    return [
        each
        for each in documents
        if isinstance(each, SkippedDocument)
        or each.data["kind"] == DEVICE_CLASS
        or _object_namespaces(each.data)[0] == namespace
    ]


def _object_namespaces(data: dict[str, Any]) -> tuple[str, str]:
    """Return the namespace that an object is in, and its name if it is a Namespace."""
    metadata = map_at(data, "metadata")
    name = str(metadata.get("name")) if data["kind"] == "Namespace" else ""
    return str(metadata.get("namespace", "default")), name


def _lint_text(results: list[LintResult]) -> str:
    lines = []
    for source, findings, fixed in results:
        name = map_at(source.data, "metadata").get("name", "(no name)")
        lines.append(f"{sanitize(str(source.locate()))}: {source.data['kind']} {sanitize(str(name))}")
        lines += [f"  {f.code} {sanitize(format_path(f.path))}: {sanitize(f.message)}. {f.fix}" for f in findings]
        if fixed is not None:
            lines += ["  Write instead:", *(f"    {line}" for line in yaml_text(fixed).splitlines())]
        lines.append("")
    return "\n".join(lines)


def _lint_document(result: LintResult) -> dict[str, Any]:
    findings = [
        {"code": f.code, "path": format_path(f.path), "message": f.message, "fix": f.fix} for f in result.findings
    ]
    return {**location_document(result.source.locate()), "findings": findings, "fixed": result.fixed}
