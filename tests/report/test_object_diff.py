"""Patches applied as the `jsonpatch` package does, and the lines about changed fields."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.model.decisions import PatchOperation, patch_add, patch_replace
from webhook.report.object_diff import apply_json_patch, diff_lines, field_changes, object_without_records

KEYS = st.sampled_from(["a", "b/c", "d~e", "", "0"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
DATA = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
OBJECTS = st.dictionaries(KEYS, DATA, min_size=1, max_size=3)


def all_paths(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return every path in some data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(below for key, value in items for below in all_paths(value, (*path, key)))]


@st.composite
def patched_objects(draw: st.DrawFn) -> tuple[Any, list[PatchOperation]]:
    """Draw an object and one operation that can be applied to it."""
    data = draw(OBJECTS)
    path = draw(st.sampled_from(all_paths(data)[1:]))
    value = draw(DATA)
    return data, [draw(st.sampled_from([patch_add, patch_replace]))(path, value)]


@settings(max_examples=200)
@given(patched_objects())
def test_apply_agrees_with_jsonpatch(case: tuple[Any, list[PatchOperation]]) -> None:
    data, patch = case
    before = copy.deepcopy(data)
    theirs: Any = copy.deepcopy(patch)
    assert apply_json_patch(data, patch) == jsonpatch.apply_patch(data, theirs)
    assert data == before, "the given object is not changed"


@given(OBJECTS, OBJECTS)
def test_there_are_no_changes_exactly_if_the_objects_are_equal(before: Any, after: Any) -> None:
    same = before == after and repr(before) == repr(after)
    assert not same or list(field_changes(before, after)) == []
    assert before == after or list(field_changes(before, after)) != []


INVALID: dict[str, tuple[Any, PatchOperation]] = {
    "a missing parent": ({}, patch_add(("a", "b"), 1)),
    "replace of a missing field": ({}, patch_replace(("a",), 1)),
    "an index past the end of a list": ([], patch_add((1,), 1)),
    "a field of a number": ({"a": 1}, patch_add(("a", "b"), 1)),
}


@pytest.mark.parametrize(("data", "operation"), INVALID.values(), ids=INVALID)
def test_an_operation_on_a_missing_field_is_rejected(data: Any, operation: PatchOperation) -> None:
    with pytest.raises(LookupError):
        apply_json_patch(data, [operation])


def test_an_unsupported_operation_is_rejected() -> None:
    with pytest.raises(ValueError, match="remove"):
        apply_json_patch({"a": 1}, [{"op": "remove", "path": "/a"}])


def test_the_end_of_a_list_is_a_dash() -> None:
    assert apply_json_patch({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}]) == {"a": [1, 2]}


def test_each_field_is_one_line() -> None:
    before = {"spec": {"tolerations": [], "old": True, "limits": {"nvidia.com/gpu": "1"}}}
    toleration = {"key": "a", "operator": "Exists", "effect": "NoSchedule"}
    after = {"spec": {"tolerations": [toleration], "limits": {"nvidia.com/gpu": "0"}, "name": "", "none": None}}
    assert diff_lines(before, after) == [
        "+ spec.tolerations[0]: a Exists NoSchedule",
        "- spec.old: true",
        "~ spec.limits['nvidia.com/gpu']: 1 → 0",
        '+ spec.name: ""',
        "+ spec.none: null",
    ]


def test_a_value_with_one_member_has_the_whole_path() -> None:
    assert diff_lines({}, {"a": {"b": [{"c": [1, {"d": 2}]}]}}) == ["+ a.b[0].c: [1, {d: 2}]"]


def test_a_long_line_omits_the_middle_of_its_path_first() -> None:
    after = {"spec": {"affinity": {"a" * 60: {"terms": [{"key": "k", "operator": "In", "values": ["v" * 30]}]}}}}
    [line] = diff_lines({}, after, width=78)
    assert line == f"+ spec.affinity…terms[0]: k In {'v' * 30}"
    [cut] = diff_lines({}, after, width=40)
    assert (len(cut), cut[-1]) == (40, "…")


def test_records_are_omitted_unless_the_reference_has_them() -> None:
    shaped = {"metadata": {"name": "a", "annotations": {"rightslice.dev/decision": "{}"}}}
    assert object_without_records(shaped, {"metadata": {"name": "a"}}) == {"metadata": {"name": "a"}}
    assert object_without_records(shaped, {"metadata": {"annotations": {}}}) == {
        "metadata": {"name": "a", "annotations": {}}
    }
    assert object_without_records(shaped, shaped) == shaped
    assert object_without_records([], None) == []


def test_untrusted_text_cannot_control_a_terminal() -> None:
    assert "\x1b" not in "".join(diff_lines({}, {"\x1b[2J": ["\x1b[2J"]}))


def test_limits_come_before_requests() -> None:
    before = {"requests": {"a": 1}, "limits": {"a": 1}}
    after = {"requests": {"a": 2}, "limits": {"a": 2}}
    assert diff_lines(before, after) == ["~ limits.a: 1 → 2", "~ requests.a: 1 → 2"]


def test_a_new_value_that_does_not_fit_is_split_into_members() -> None:
    after = {"spread": [{"key": "k" * 20, "labels": {"app": "v" * 20}}]}
    assert diff_lines({}, after, width=44) == [f"+ spread[0].key: {'k' * 20}", f"+ spread[0].labels.app: {'v' * 20}"]
    assert diff_lines({}, after, width=120) == [f"+ spread[0]: {{key: {'k' * 20}, labels: {{app: {'v' * 20}}}}}"]
    assert all(len(line) <= 30 for line in diff_lines({}, after, width=30))
