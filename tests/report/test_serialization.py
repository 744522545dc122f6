"""JSON and YAML text that parses to the same data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.documents.reader import read_documents
from webhook.report.serialization import json_chunks, json_text, yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "no",
        "Yes",
        "null",
        "1e3",
        "0x1f",
        "12:30:45",
        "-",
        "a: b",
        "a #b",
        "nvidia.com/gpu",
        "~",
        ".inf",
        "\u0085",
        "\ufeff",
    ]
)
KEYS = TEXT.filter(lambda text: text != "<<")
"""Every parser treats a merge key specially."""

LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
DATA = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
OBJECTS = st.dictionaries(KEYS, DATA, min_size=1, max_size=3)


@settings(max_examples=200)
@given(OBJECTS)
def test_yaml_round_trips(data: dict[str, Any]) -> None:
    assert [document.data for document in read_documents(yaml_text(data), "f", aliases=True)] == [data]


@given(OBJECTS)
def test_json_round_trips(data: dict[str, Any]) -> None:
    assert json.loads(json_text(data)) == data


def test_yaml_is_in_block_style() -> None:
    data = {
        "kind": "GPUPolicy",
        "spec": {"mode": "off", "codes": ["GPU-L102"], "all": [{"max": 8, "x": []}], "e": {}},
    }
    assert yaml_text(data) == (
        'kind: GPUPolicy\nspec:\n  mode: "off"\n  codes:\n    - GPU-L102\n  all:\n    - max: 8\n      x: []\n  e: {}\n'
    )


ODD = {"a number past 64 bits": {"a": 10**30}, "a lone surrogate": {"a": "\ud800", "\ud800": 1}}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_values_outside_json_become_text(data: dict[str, Any]) -> None:
    assert isinstance(json.loads(json_text(data))["a"], str)
    assert yaml_text(data)


@pytest.mark.parametrize(("data", "want"), [({}, "{}\n"), ([], "[]\n"), ((), "[]\n"), ("no", '"no"\n'), (1, "1\n")])
def test_yaml_of_scalars_and_empty_collections(data: Any, want: str) -> None:
    assert yaml_text(data) == want


PARTS: dict[str, Any] = {
    "empty": {},
    "values": {"a": 1, "b": {"c": [1, 2, {"d": "x\ny"}]}, "e": [], "f": {}},
    "text that JSON escapes": {'k"\n': "\ud800", "n": 2**70},
}


@pytest.mark.parametrize("data", PARTS.values(), ids=PARTS)
def test_chunks_join_to_the_whole_text(data: dict[str, Any]) -> None:
    assert "".join(json_chunks(data)) == json_text(data)


@pytest.mark.parametrize("members", [[], [1], [{"a": [1]}, "x\ny", []]], ids=["none", "one", "several"])
def test_an_iterator_is_written_as_a_list(members: list[Any]) -> None:
    assert "".join(json_chunks({"first": iter(members), "last": 1})) == json_text({"first": members, "last": 1})
