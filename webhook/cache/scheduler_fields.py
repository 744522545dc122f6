"""Checks the fields of a KubeSchedulerConfiguration, which kube-scheduler decodes strictly.

A misspelled field or value would silently turn off a rule that keeps pods off nodes.

Source: `k8s.io/kube-scheduler/config/v1` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

from webhook.errors import quote_text
from webhook.model.field_paths import FieldPath

FIELDS: dict[FieldPath, tuple[str, ...]] = {
    (): (
        "apiVersion", "kind", "metadata", "parallelism", "leaderElection", "clientConnection", "enableProfiling",
        "enableContentionProfiling", "percentageOfNodesToScore", "podInitialBackoffSeconds", "podMaxBackoffSeconds",
        "profiles", "extenders", "delayCacheUntilActive",
    ),
    ("profiles", "*"): ("schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"),
    ("profiles", "*", "plugins"): (
        "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit",
        "preBind", "bind", "postBind", "multiPoint", "placementGenerate", "placementScore",
    ),
    ("profiles", "*", "plugins", "*"): ("enabled", "disabled"),
    ("profiles", "*", "pluginConfig", "*"): ("name", "args"),
    ("extenders", "*"): (
        "urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS", "tlsConfig",
        "httpTimeout", "nodeCacheCapable", "managedResources", "ignorable",
    ),
}  # fmt: skip
"""The fields of each map by its path; "*" stands for any step."""

ARGS = {
    "PodTopologySpread": ("apiVersion", "kind", "defaultConstraints", "defaultingType"),
    "NodeAffinity": ("apiVersion", "kind", "addedAffinity"),
}
"""The arguments of the plugins whose arguments are read."""

VALUES = {
    "defaultingType": ("System", "List"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
}


class FieldError(NamedTuple):
    """A field or value that kube-scheduler would not accept."""

    path: FieldPath
    sentence: str


def find_field_error(configuration: dict[str, Any]) -> FieldError | None:
    """Return the first field or value of a configuration that kube-scheduler would not accept; None without any."""
    return next(_field_errors((), configuration), None)


def _field_errors(path: FieldPath, value: Any) -> Iterator[FieldError]:
    known = _known_fields(path)
    if known and isinstance(value, dict):
        yield from (
            FieldError((*path, name), _describe(str(name), known, "field")) for name in value if name not in known
        )
        if path[-2:-1] == ("pluginConfig",):
            yield from _argument_errors((*path, "args"), value.get("name"), value.get("args"))
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        if step != "args":
            yield from _field_errors((*path, step), item)


def _known_fields(path: FieldPath) -> tuple[str, ...]:
    for pattern, fields in FIELDS.items():
        if len(pattern) == len(path) and all(one in ("*", step) for one, step in zip(pattern, path, strict=True)):
            return fields
    return ()


def _argument_errors(path: FieldPath, plugin: object, args: object) -> Iterator[FieldError]:
    known = ARGS.get(plugin, ()) if isinstance(plugin, str) else ()
    if not known or not isinstance(args, dict):
        return
    yield from (FieldError((*path, name), _describe(str(name), known, "field")) for name in args if name not in known)
    yield from _value_errors(path, args, "defaultingType")
    constraints = args.get("defaultConstraints")
    for place, one in enumerate(constraints if isinstance(constraints, list) else ()):
        if isinstance(one, dict):
            yield from _value_errors((*path, "defaultConstraints", place), one, "whenUnsatisfiable")


def _value_errors(path: FieldPath, fields: dict[str, Any], name: str) -> Iterator[FieldError]:
    value = fields.get(name)
    if value is not None and value not in VALUES[name]:
        yield FieldError((*path, name), _describe(str(value), VALUES[name], "value"))


def _describe(found: str, known: tuple[str, ...], what: str) -> str:
    near = get_close_matches(found, known, n=1, cutoff=0.5)
    write = near[0] if near else known[-1] if what == "value" else f"one of {', '.join(known)}, or remove it"
    must = f"a {what} of kube-scheduler" if what == "field" else " or ".join(known)
    return f"must be {must}, found {quote_text(found)}. Write {write}"
