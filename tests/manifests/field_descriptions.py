"""Descriptions of CRD fields, from the tables of docs/policy.md: `kubectl explain gpupolicy.spec` prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.conftest import ROOT

Json = dict[str, Any]

_TABLE = re.compile(r"^\| field \| meaning \|(.*)\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
_SEE_ALSO = re.compile(r" \[[^]]*\]\([^)]*\)\.")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def read_field_descriptions(page: str) -> dict[str, str]:
    """Return the meaning of each field by its path, for example "spec.rightSizing.risk".

    A second table of a section describes the members of its lists, for example "spec.limits.resource".
    """
    descriptions: dict[str, str] = {}
    for section in re.split(r"^#+ ", page, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        for other_columns, rows in _TABLE.findall(section):
            for row in rows.splitlines():
                names, text, *others = re.split(r" +\| *", row.strip("| "))
                text = _LINK.sub(r"\1", _SEE_ALSO.sub("", text))
                if "default" in other_columns and others and others[0].startswith("`"):
                    text += f" Default: {others[0]}."
                for name in re.findall(r"`([\w.]+)`", names):
                    path = name if name.startswith("spec.") else f"{heading}.{name}"
                    descriptions.setdefault(path, text.replace("`", ""))
    return {path: text for path, text in descriptions.items() if not text.startswith("As in")}


def add_field_descriptions(crds: list[Json]) -> list[Json]:
    """Return the CRDs with a description of every field that is on the page and has none."""
    descriptions = read_field_descriptions((ROOT / "docs/policy.md").read_text(encoding="utf-8"))
    for crd in crds:
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        _describe(schema["properties"]["spec"], ("spec",), descriptions)
    return crds


def _describe(schema: Json, path: tuple[str, ...], descriptions: Mapping[str, str]) -> None:
    members = schema.get("items", schema)
    for name, field in members.get("properties", {}).items():
        # A GPUPolicyException has the fields of an exemption, and some of its own.
        candidates = map(".".join, ((*path, name), (*path[:2], name), ("spec.exemptions", *path[1:], name)))
        text = next((descriptions[one] for one in candidates if one in descriptions), "")
        if text and "description" not in field:
            members["properties"][name] = {"description": text, **field}
        _describe(field, (*path, name), descriptions)
