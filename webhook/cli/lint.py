"""`lint`: traps in LimitRanges and ResourceQuotas themselves, each with the object as it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from webhook.audit.manifests import Entry, Passed, objects_in
from webhook.cache.shipped import shipped
from webhook.cache.snapshot import DEMO
from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, say, stop, tell
from webhook.cli.inputs import LIVE, Reach, live_cluster, refuse_reach
from webhook.engine.linting import LINTED, fixed, lint_all, misshapen
from webhook.model.findings import Finding
from webhook.model.paths import dotted
from webhook.report.data import as_json, as_yaml
from webhook.report.words import count, shown

Linted = tuple[Entry, list[Finding], dict[str, Any]]
"""An object, its traps, and what to write instead."""

CLASS = "DeviceClass"

Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Files, folders or - for standard input."),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="What is stored in a cluster: live, a file or folder of `kubectl get -o yaml`, or demo.",
    ),
]
Space = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=flags.namespace_name,
        help="With --cluster: this namespace only. Default: all.",
    ),
]
Format = Annotated[
    str, typer.Option("-o", "--output", metavar="FORMAT", help="text, yaml (the corrected objects alone) or json.")
]


def lint_objects(
    files: Files = None,
    cluster: ClusterName = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: Space = None,
    output: Format = "text",
) -> None:
    """Find traps in LimitRanges and ResourceQuotas: what they do is not what they say. Other objects are passed over.

    Each comes with the whole object as it should be, ready to be applied. With --cluster live those of a cluster are
    read, in which nothing is changed. What cannot be read is told, and an object that no API server takes is a fault.

    Exit code: 0 no traps, 1 traps, 2 a file or flag is wrong, 3 the cluster did not answer.
    """
    if output not in REPORTS:
        raise typer.BadParameter(f"must be one of {', '.join(REPORTS)}", param_hint="-o")
    found = _found(files or (), cluster, Reach(kubeconfig, context), namespace)
    entries = [one for one in found if isinstance(one, Entry) and one.data["kind"] in LINTED]
    passed = [one for one in found if isinstance(one, Passed)] + [one for each in entries for one in _misshapen(each)]
    faults = [one for one in passed if one.broken]
    trapped = _trapped(entries, _classes(found) if cluster else [])
    say(REPORTS[output](trapped))
    for one in passed:
        tell(f"{shown(str(one.place))}: {shown(one.reason)}")
    traps = sum(len(findings) for _, findings, _ in trapped)
    wrong = f", {count(len(faults), 'fault')}" if faults else ""
    tell(f"{count(len(entries), 'object')}: {count(traps, 'trap') if traps else 'no traps'}{wrong}")
    raise typer.Exit(WRONG_INPUT if faults else FINDINGS if trapped else CLEAN)


def _classes(found: Sequence[Entry | Passed]) -> list[str]:
    """The names of the DeviceClasses that were read."""
    metadata = (_metadata(one.data) for one in found if isinstance(one, Entry) and one.data["kind"] == CLASS)
    return [str(each["name"]) for each in metadata if each.get("name")]


def _trapped(entries: Sequence[Entry], classes: Sequence[str]) -> list[Linted]:
    """The objects with traps whose corrected form an API server takes."""
    each = zip(entries, lint_all([entry.data for entry in entries], classes), strict=True)
    linted = [(entry, findings, fixed(entry.data, findings, classes)) for entry, findings in each if findings]
    return [one for one in linted if not any(wrong.refused for wrong in misshapen(one[2]))]


def _found(files: Sequence[str], cluster: str | None, reach: Reach, namespace: str | None) -> list[Entry | Passed]:
    """What is to be looked at. Stops the program where the flags do not say one thing."""
    if bool(files) == bool(cluster):
        stop("which LimitRanges and quotas? Write -f FILE, or --cluster live, a snapshot or demo")
    if cluster == LIVE:
        with live_cluster(reach) as live:
            found = list(live.limits(namespace))
            if namespace and not found and live.lacks(namespace):
                stop(f"-n {namespace}: no such namespace in this cluster")
            return [*found, *live.device_classes()]
    refuse_reach(reach)
    if cluster:
        return _of_snapshot(cluster, namespace)
    if namespace:
        stop("-n says what to read of a cluster: write --cluster instead of -f")
    return list(objects_in(files))


def _of_snapshot(name: str, namespace: str | None) -> list[Entry | Passed]:
    found = list(objects_in([str(shipped("examples") / "cluster") if name == DEMO else name]))
    if not namespace:
        return found
    if not any(isinstance(one, Entry) and namespace in _namespaces(one.data) for one in found):
        stop(f"-n {namespace}: no such namespace in {shown(name)}")
    return [one for one in found if isinstance(one, Passed) or _is_of(one.data, namespace)]


def _is_of(data: dict[str, Any], namespace: str) -> bool:
    return data["kind"] == CLASS or _namespaces(data)[0] == namespace


def _namespaces(data: dict[str, Any]) -> tuple[str, str]:
    """The namespace that an object is in, and the one that it is."""
    known = _metadata(data)
    return str(known.get("namespace", "default")), str(known.get("name")) if data["kind"] == "Namespace" else ""


def _metadata(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _misshapen(entry: Entry) -> list[Passed]:
    return [
        Passed(entry.place(one.path), f"{dotted(one.path)}: {one.sentence}", broken=one.refused)
        for one in misshapen(entry.data)
    ]


def _text(trapped: list[Linted]) -> str:
    lines = []
    for entry, findings, instead in trapped:
        name = _metadata(entry.data).get("name", "(no name)")
        lines.append(f"{shown(str(entry.place()))}: {entry.data['kind']} {shown(str(name))}")
        lines += [f"  {one.code} {shown(dotted(one.path))}: {shown(one.message)}. {one.fix}" for one in findings]
        lines += ["  Write instead:", *(f"    {line}" for line in as_yaml(instead).splitlines()), ""]
    return "\n".join(lines)


def _yaml(trapped: list[Linted]) -> str:
    return "---\n".join(as_yaml(instead) for _, _, instead in trapped)


def _json(trapped: list[Linted]) -> str:
    return as_json([_as_data(*one) for one in trapped])


def _as_data(entry: Entry, findings: list[Finding], instead: dict[str, Any]) -> Any:
    said = [{"code": f.code, "path": dotted(f.path), "message": f.message, "fix": f.fix} for f in findings]
    return {"place": str(entry.place()), "findings": said, "fixed": instead}


REPORTS: dict[str, Callable[[list[Linted]], str]] = {"text": _text, "yaml": _yaml, "json": _json}
