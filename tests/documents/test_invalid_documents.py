"""iter_documents: an invalid document yields its error, and the others are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.documents.document import Document
from webhook.documents.reader import iter_documents
from webhook.documents.yaml_reader import MAX_FAULTY_DOCUMENTS
from webhook.errors import DocumentError, TemplateError

Found = list[tuple[Any, str]]
"""Data, or the type of the error, and its location, in order."""


def read_documents(text: str) -> Found:
    return [
        (each.data, str(each.locate(("b",)))) if isinstance(each, Document) else (type(each), str(each.location))
        for each in iter_documents(text, "f", aliases=True)
    ]


BEFORE, AFTER = "a: 1\nb: 2\n", "---\nc: 3\nb: 4\n"
FAULTY = {
    "a template": ("{{ x }}\n", (TemplateError, "f:4:2")),
    "a template in a value": ("b:\n  c: {{ .x }}\n", (TemplateError, "f:5:7")),
    "a tab": ("b:\n\tc: 1\n", (DocumentError, "f:5:1")),
    "a duplicate key": ("b: 1\nb: 2\n", (DocumentError, "f:5:1")),
    "a duplicate key and braces in quotes": ("c: '{{ x }}'\nb: 1\nb: 2\n", (DocumentError, "f:6:1")),
    "an open brace, detected at the next marker": ("b: {c\n", (DocumentError, "f:5:1")),
    "an open quote, detected at the next marker": ("b: 'c\n\n", (DocumentError, "f:6:1")),
    "a block of text above the error": ("a: |\n  ---\n  {{ x\nb: c: d\n", (DocumentError, "f:7:5")),
    "too deep nesting": ("[" * 200 + "\n", (DocumentError, "f:4:101")),
    "braces in a comment with an error": ("# {{ x }}\nb: c: d\n", (DocumentError, "f:5:5")),
    "braces in quotes with an error": ('c: "{{ x }}"\nb: c: d\n', (DocumentError, "f:5:5")),
    "an alias from the previous document": ("a: *x\n", (DocumentError, "f:4:4")),
}


@pytest.mark.parametrize(("text", "fault"), FAULTY.values(), ids=FAULTY)
def test_documents_around_an_invalid_one_are_read(text: str, fault: tuple[Any, str]) -> None:
    lines = 4 + text.count("\n")

    assert read_documents(f"{BEFORE}---\n{text}{AFTER}") == [
        ({"a": 1, "b": 2}, "f:2:4"),
        fault,
        ({"c": 3, "b": 4}, f"f:{lines + 2}:4"),
    ]


def test_an_invalid_character_affects_only_its_document() -> None:
    assert read_documents(f"{BEFORE}---\nb: '\x0b'\n---\nb: 1\n---\nb: \x07\n{AFTER}") == [
        (DocumentError, "f:4:5"),
        (DocumentError, "f:8:4"),
        ({"a": 1, "b": 2}, "f:2:4"),
        ({"b": 1}, "f:6:4"),
        ({"c": 3, "b": 4}, "f:11:4"),
    ]


def test_after_a_hundred_documents_with_invalid_characters_reading_stops() -> None:
    each = read_documents("b: \x07\n---\n" * 150)
    assert len(each) == 101
    assert each[-1] == (DocumentError, "f:201:4")


def test_a_byte_order_mark_before_a_document_is_dropped() -> None:
    assert read_documents("\ufeffb: 1\n---\n\ufeffb: 2\n") == [({"b": 1}, "f:1:4"), ({"b": 2}, "f:3:4")]


BREAKS = {"Windows": "\r\n", "classic Mac OS": "\r", "a line separator": "\u2028"}


@pytest.mark.parametrize("end", BREAKS.values(), ids=BREAKS)
def test_lines_are_counted_as_the_parser_does(end: str) -> None:
    assert read_documents(f"b: @{end}---{end}b: 1{end}---{end}b: 2{end}") == [
        (DocumentError, "f:1:4"),
        ({"b": 1}, "f:3:4"),
        ({"b": 2}, "f:5:4"),
    ]


def test_a_text_that_begins_like_json_may_be_a_template() -> None:
    assert read_documents("{{ x }}\n---\nb: 1\n") == [(TemplateError, "f:1:2"), ({"b": 1}, "f:3:4")]


def test_json_values_before_an_error_are_read() -> None:
    assert read_documents('{"b": 1} {"b": 2}\n{"b": }') == [
        ({"b": 1}, "f:1:7"),
        ({"b": 2}, "f:1:16"),
        (DocumentError, "f:2:7"),
    ]


def test_reading_stops_after_a_bound_of_errors() -> None:
    *faults, last = read_documents("---\n@\n" * (MAX_FAULTY_DOCUMENTS + 5))

    assert faults == [(DocumentError, f"f:{2 * n}:1") for n in range(1, MAX_FAULTY_DOCUMENTS + 1)]
    assert last == (DocumentError, f"f:{2 * MAX_FAULTY_DOCUMENTS + 1}:1")


def test_exactly_the_bound_of_errors() -> None:
    assert len(read_documents("---\n@\n" * MAX_FAULTY_DOCUMENTS)) == MAX_FAULTY_DOCUMENTS


GOOD = ["b: 1\n", "b: [x:y]\n", "b: |\n  {{ x\n", "b: '---'\n", "b: --- c\n", "b: 'é\n  😀'\n"]
WRONG = ["{{ x }}\n", "b: 1\nb: 2\n", "@\n", "b: {\n", "b: 'c\n", "a: b: c\n", "b: *x\n", "b: !t 1\n"]


@given(st.lists(st.sampled_from(GOOD + WRONG), max_size=12))
def test_documents_keep_their_order_and_lines(documents: list[str]) -> None:
    """The result for a document does not depend on those around it."""
    text, expected = "", []
    for document in documents:
        text += "---\n"
        above = text.count("\n")
        alone = read_documents(f"---\n{document}---\n")
        expected += [(what, shift_line(place, above - 1)) for what, place in alone]
        text += document
    assert read_documents(f"{text}---\n") == expected


def shift_line(place: str, lines: int) -> str:
    file, line, column = place.split(":")
    return f"{file}:{int(line) + lines}:{column}"
