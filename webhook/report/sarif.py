"""SARIF 2.1.0, the format that code scanning reads.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0, sections 3.13 to 3.30.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from webhook.model.codes import CODES
from webhook.report.notes import CodeAnnotation
from webhook.report.words import sanitize

Json = dict[str, Any]
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_document(notes: Sequence[CodeAnnotation], version: str) -> Json:
    """Write one run: a rule for each code met, a result for each note."""
    rules = {code: i for i, code in enumerate(dict.fromkeys(note.code for note in notes))}
    driver = {"name": "rightslice", "semanticVersion": version, "rules": [_sarif_rule(code) for code in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(note, rules[note.code]) for note in notes],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_rule(code: str) -> Json:
    if code not in CODES:
        return {"id": code, "shortDescription": {"text": code}}
    page = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.reason},
        "help": {"text": page.fix},
    }


def _sarif_result(note: CodeAnnotation, rule: int) -> Json:
    place = note.place
    physical: Json = {"artifactLocation": {"uri": quote(place.file)}}
    if place.line:
        physical["region"] = {"startLine": place.line, "startColumn": max(1, place.column)}
    return {
        "ruleId": note.code,
        "ruleIndex": rule,
        "level": note.level.value,
        "message": {"text": sanitize(note.message)},
        "locations": [{"physicalLocation": physical}],
    }
