"""JSONPath templates: what kubectl prints for the same data; tests/cluster runs these cases with kubectl itself."""

from __future__ import annotations

from typing import Any

import pytest

from webhook.errors import JsonPathError
from webhook.report.jsonpath import render_template, values_at_path

THING: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Thing",
    "metadata": {"name": "t", "labels": {"a.b/c": "x"}, "annotations": {"q": "r"}},
    "none": None,
    "empty": "",
    "yes": True,
    "half": 0.5,
    "one": 1.0,
    "big": 123456789012345678,
    "tiny": 1e-07,
    "list": [1, 2, 3, 4, 5],
    "map": {"b": 1, "a": {"z": "x&y<"}},
    "parts": [
        {"k": "x", "n": 1, "in": [1, 2]},
        {"k": "y", "n": 3, "m": 4, "t": True},
        {"k": "z"},
        {"k": "a)b", "n": 9},
    ],
    "a-b": 1,
}

CASES = {
    "a field": ("{.metadata.name}", "t"),
    "text around fields": ("{.kind} is {.metadata.name}}", "Thing is t}"),
    "no braces: text": (".kind", ".kind"),
    "a key with dots": (r"{.metadata.labels.a\.b/c}", "x"),
    "a key in brackets": ("{['kind']}", "Thing"),
    "dots in brackets are steps": ("{['metadata.name']}", "t"),
    "a key with a hyphen": ("{.a-b}", "1"),
    "the root": ("{$.kind} {@.kind}", "Thing Thing"),
    "a missing field is empty": ("{.nope}|{.metadata.name.x}", "|"),
    "scalars": ("{.yes} {.none} {.empty}|", "true null |"),
    "numbers": ("{.half} {.one} {.big} {.tiny}", "0.5 1 123456789012345678 1e-07"),
    "a map is JSON with sorted keys, escaped for HTML": ("{.map}", r'{"a":{"z":"x\u0026y\u003c"},"b":1}'),
    "a list is JSON": ("{.list}", "[1,2,3,4,5]"),
    "each member": ("{.list[*]}", "1 2 3 4 5"),
    "each value of a map": ("{.metadata.labels.*}", "x"),
    "an index": ("{.list[0]}{.list[-1]}", "15"),
    "ranges of indexes": ("{.list[1:3]}|{.list[:2]}|{.list[-2:]}|{.list[::2]}|{.list[1:4:2]}", "2 3|1 2|4 5|1 3 5|2 4"),
    "no member": ("{.list[0:0]}|", "|"),
    "several indexes": ("{.list[0,2]}", "1 3"),
    "several keys": ("{.parts[*]['k','n']}", "x y z a)b 1 3 9"),
    "every depth": ("{..k}", "x y z a)b"),
    "every depth below a field": ("{.map..z}", "x&y<"),
    "a filter by text": ('{.parts[?(@.k=="y")].n}', "3"),
    "a filter in single quotes": ("{.parts[?(@.k=='y')].n}", "3"),
    "a filter with a parenthesis in its text": ('{.parts[?(@.k=="a)b")].n}', "9"),
    "a filter by a number": ("{.parts[?(@.n>2)].k}", "y a)b"),
    "a filter by a boolean": ("{.parts[?(@.t==true)].k}", "y"),
    "a filter by another field": ("{.parts[?(@.n<=@.m)].k}", "y"),
    "a filter by presence": ("{.parts[?(@.n)].k}", "x y a)b"),
    "a filter by inequality": ('{.parts[?(@.k!="x")].k}', "y z a)b"),
    "a filter with spaces": ('{.parts[?(@.k == "x" )].n}', "1"),
    "text in quotes": ("""{"a\\"b\\t"}{'single'}""", 'a"b\tsingle'),
    "a repeated part": ('{range .parts[*]}{.k}={.n}{"\\n"}{end}{.kind}', "x=1\ny=3\nz=\na)b=9\nThing"),
    "a repeated part in another": ("{range .parts[*]}{.k}:{range .in[*]}{@},{end};{end}", "x:1,2,;y:;z:;a)b:;"),
    "a repeated part without members": ("{range .nope[*]}x{end}y", "y"),
    "a list is one value": ("{range .list}<{@}>{end}", "<[1,2,3,4,5]>"),
    "spaces in braces": ("{ .kind }", "Thing"),
    "what is in null": ("{.none.x}{.none[0]}|", "|"),
}
"""A template, and what kubectl prints."""

MISTAKES = {
    "{.kind": "a brace is not closed",
    '{.parts[?(@.k=="x"]}': "[] must contain",
    "{kind}": "must be a path such as .items[*].name, or text in quotes, found 'kind'",
    "{.list[7]}": "an index must be within the list of 5, found 7",
    "{.list[2:1]}": "an index must be within the list of 5, found 2:1",
    "{.list[::0]}": "the step of a range must be above 0",
    "{.map[0]}": "[] needs a list, found {",
    "{.list[x]}": "[] must contain a number, a range START:END:STEP, * or 'NAME', found 'x'",
    "{end}": "{end} ends a {range PATH}, found none before it",
    "{.parts[?(@.k>1)].k}": "a filter must compare values of one type, found x and 1",
    "{.parts[?(@.in[*]==1)].k}": "a filter must compare one value with one",
    '{.parts[?(@.k=!"x")].k}': "must be one of ==, !=, <, <=, >, >= in a filter, found =!",
}
"""Templates that kubectl rejects too, and our errors."""


@pytest.mark.parametrize(("template", "printed"), CASES.values(), ids=CASES)
def test_a_template_prints_what_kubectl_prints(template: str, printed: str) -> None:
    assert render_template(template, THING) == printed


@pytest.mark.parametrize("template", MISTAKES)
def test_an_invalid_template_is_an_error(template: str) -> None:
    with pytest.raises(JsonPathError) as caught:
        render_template(template, THING)
    assert MISTAKES[template] in str(caught.value)


@pytest.mark.parametrize("path", ["{.metadata.name}", ".metadata.name", "metadata.name", "{metadata.name}"])
def test_a_path_to_sort_by_needs_no_braces_and_no_dot(path: str) -> None:
    assert values_at_path(path, THING) == ["t"]


def test_a_path_to_sort_by_is_one_path() -> None:
    with pytest.raises(JsonPathError, match="must be one path"):
        values_at_path("{.a}{.b}", THING)
