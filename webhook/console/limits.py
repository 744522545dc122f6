"""From the ResourceQuotas and LimitRanges of a cluster to what they say, and what they really do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from webhook.audit.object_files import SourceObject
from webhook.engine.linting import LIMIT_RANGE, LINTED_KINDS, fix_object, lint_all_objects
from webhook.engine.linting.validation import find_rejections
from webhook.model.field_paths import format_path, map_at
from webhook.model.findings import Finding
from webhook.report.console.quotas import LimitLine, LimitObject
from webhook.report.serialization import yaml_text
from webhook.well_known import Json

DEVICE_CLASS = "DeviceClass"
LIMIT_FIELDS = ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")


def describe_limits(sources: Iterable[SourceObject]) -> tuple[LimitObject, ...]:
    """Return the quotas and ranges among some objects, those that do not do what they say first, then by name."""
    objects = [each.data for each in sources if each.data["kind"] in (*LINTED_KINDS, DEVICE_CLASS)]
    linted = [each for each in objects if each["kind"] in LINTED_KINDS]
    classes = [str(map_at(each, "metadata").get("name")) for each in objects if each["kind"] == DEVICE_CLASS]
    found = [_describe(*pair, classes) for pair in zip(linted, lint_all_objects(linted, classes), strict=True)]
    return tuple(sorted(found, key=lambda each: (not each.is_misleading, each.namespace, each.kind, each.name)))


def _describe(data: Json, findings: Sequence[Finding], classes: Sequence[str]) -> LimitObject:
    metadata = map_at(data, "metadata")
    corrected = fix_object(data, findings, classes) if findings else None
    errors = find_rejections(corrected or data)
    return LimitObject(
        str(metadata.get("namespace", "default")),
        str(data["kind"]),
        str(metadata.get("name", "")),
        tuple(_range_lines(data) if data["kind"] == LIMIT_RANGE else _quota_lines(data)),
        tuple(findings),
        yaml_text(corrected) if corrected is not None else "",
        tuple(f"{format_path(each.path)}: {each.message}" for each in errors),
    )


def _quota_lines(data: Json) -> Iterator[LimitLine]:
    used = map_at(data, "status", "used")
    for resource, amount in map_at(data, "spec", "hard").items():
        yield LimitLine(str(resource), str(amount), str(used[resource]) if resource in used else "")


def _range_lines(data: Json) -> Iterator[LimitLine]:
    items = map_at(data, "spec").get("limits")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            for field in LIMIT_FIELDS:
                amounts = map_at(item, field)
                if amounts:
                    written = ", ".join(f"{resource} {amount}" for resource, amount in amounts.items())
                    yield LimitLine(f"{item.get('type')} {field}", written)
