"""compile_match_condition: evaluation, load errors, and binding only the fields that are read."""

from __future__ import annotations

from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_pod
from webhook.policy.cel_syntax import find_fields_read
from webhook.policy.match_conditions import CEL_VARIABLES, ExpressionError, compile_match_condition, prune_object
from webhook.policy.policy_set import ConditionError

POD = make_pod("a").annotate("note", "x").label("app", "train").gpus(2).build()
MIRROR = "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"

HOLDS = {
    "no mirror pod": (MIRROR, True),
    "an existing field": ("object.metadata.name == 'a'", True),
    "a field below a list": ("object.spec.containers[0].name == 'main'", True),
    "every container": ("object.spec.containers.all(c, c.image.startsWith('example/'))", True),
    "some container": ("object.spec.containers.exists(c, c.name == 'side')", False),
    "a key with a slash": ("object.spec.containers[0].resources.limits['nvidia.com/gpu'] == '2'", True),
    "the requester": ("request.userInfo.username == 'alice' && request.operation == 'CREATE'", True),
    "the namespace": ("namespaceObject.metadata.labels.tier == 'research'", True),
    "without an old object": ("oldObject == null", True),
    "an index instead of a member": ("object['metadata']['name'] == 'a'", True),
    "a loop variable that hides the request": ("object.spec.containers.all(request, request.image != 'x')", True),
    "a map key is not a field": ("!('x' in namespaceObject.metadata.labels)", True),
    "a loop variable that hides the object": ("object.spec.containers.all(object, object.name == 'main')", True),
    "a pattern that backtracks in other engines": (
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'.matches('(a+)+$')",
        False,
    ),
    "a conditional": ("has(object.spec.nodeName) ? object.spec.nodeName == 'n' : true", True),
    "a map literal": ("{'k': object.metadata.name}.k == 'a'", True),
    "chained loops are not nested": (
        "object.spec.containers.map(c, c.name).filter(n, n != '').map(n, n + '!').all(n, n == 'main!')",
        True,
    ),
}
VARIABLES: dict[str, Any] = {
    "object": POD,
    "oldObject": None,
    "request": {"operation": "CREATE", "userInfo": {"username": "alice"}},
    "namespaceObject": {"metadata": {"name": "team", "labels": {"tier": "research"}}},
}


@pytest.mark.parametrize(("text", "holds"), HOLDS.values(), ids=HOLDS)
def test_evaluation(text: str, holds: bool) -> None:
    assert compile_match_condition("c", text).evaluate(VARIABLES) is holds


PATTERNS = {
    "of a method": ("object.metadata.name.matches('(a')", "found '(a' at line 1, column 30 (missing ): (a)"),
    "of a function": ("matches(object.metadata.name, '[a')", "found '[a' at line 1, column 31 (missing ]: [a)"),
    "raw, with a look-ahead": (
        r"object.metadata.name.matches(r'\d(?=x)')",
        r"found '\\d(?=x)' at line 1, column 30 (invalid perl operator: (?=)",
    ),
    "with a back-reference": (r"object.a.matches(r'(a)\1')", r"(invalid escape sequence: \1)"),
    "concatenated from two texts": ("object.a.matches('(' + 'a')", "found '(a' at line 1, column 22"),
    "on the second line, after an umlaut": (
        "'größe' == object.a ||\nobject.a.matches('*')",
        "line 2, column 18",
    ),
    "in a loop": ("object.a.exists(x, x.matches('(a'))", "found '(a'"),
    "in a map": ("{'k': object.a.matches('(a')}.k", "found '(a'"),
    "in a branch that is never evaluated": ("true || object.a.matches('(a')", "found '(a'"),
    "too large": ("object.a.matches('x{1001}')", "invalid repetition size"),
}


@pytest.mark.parametrize(("text", "words"), PATTERNS.values(), ids=PATTERNS)
def test_an_invalid_pattern_is_a_load_error(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_match_condition("c", text)
    assert words in caught.value.must
    assert "such as '^team-[0-9]+$'" in caught.value.write


def test_a_pattern_from_the_object_is_not_checked_at_load() -> None:
    condition = compile_match_condition("c", "'a'.matches(object.metadata.name + '(')")
    with pytest.raises(ConditionError, match="missing"):
        condition.evaluate(VARIABLES)


FAILS = {
    "a missing field": "object.spec.nodeName == 'n'",
    "a comparison of different types": "object.metadata.name > 1",
    "a word converted to a number": "int(object.metadata.name) > 1",
    "a result that is not boolean": "object.metadata.name",
    "a member of a list": "object.spec.containers.name == 'x'",
    "a member of null": "oldObject.metadata.name == 'x'",
}


@pytest.mark.parametrize("text", FAILS.values(), ids=FAILS)
def test_run_time_errors(text: str) -> None:
    with pytest.raises(ConditionError) as raised:
        compile_match_condition("c", text).evaluate(VARIABLES)
    assert 0 < len(str(raised.value)) <= 200


@pytest.mark.parametrize("value", [10**30, object(), "\ud800"])
def test_unsupported_data_is_a_run_time_error(value: object) -> None:
    with pytest.raises(ConditionError):
        compile_match_condition("c", "object.x == object.x").evaluate({"object": {"x": value}})


INVALID = {
    "an incomplete comparison": "object.x ==",
    "an unknown variable": "pod.x == 1",
    "an unknown function": "object.x.frobnicate()",
    "a number": "1",
    "text": "'x'",
    "three nested loops": "[1].all(x, [1].all(y, [1].all(z, x + y + z > 0)))",
    "a sum of two thousand": "1" + "+1" * 2000 + " == 1",
    "a control character": "object.x == \x1b[0m",
    "a hundred brackets": "(" * 100 + "true" + ")" * 100,
    "nothing": " ",
    "a field that no request has": "request.options.kind == 'x'",
    "has() of a field that no request has": "has(request.object)",
    "an unknown field below a known one": "request.userInfo.extra.a == 'x'",
    "a namespace field that is not passed on": "namespaceObject.status.phase == 'Active'",
    "a field in a loop": "object.spec.containers.all(c, c.name == request.nme)",
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_load_errors(text: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_match_condition("c", text)
    assert raised.value.must
    assert raised.value.write
    assert "INVALID_ARGUMENT" not in raised.value.must
    assert raised.value.must.isprintable()


def test_an_unknown_field_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_match_condition("c", "request.kind.versoin == 'v1'")
    assert raised.value.must == "read existing fields, found 'versoin' of request.kind"
    assert raised.value.write == "one of group, kind, version"


def test_the_error_has_line_and_column() -> None:
    with pytest.raises(ExpressionError, match="line 2, column 13"):
        compile_match_condition("c", "has(object.a) &&\n object.b ==")


def test_only_fields_that_are_read_are_bound() -> None:
    read = find_fields_read(_compiled(MIRROR + " && request.operation == 'CREATE'").serialize())
    assert {member for member in read.fields if member[0] in CEL_VARIABLES} == {
        ("object", "metadata", "annotations"),
        ("request", "operation"),
    }
    assert prune_object(POD, {"metadata": {"annotations": None}}) == {"metadata": {"annotations": {"note": "x"}}}


def _compiled(text: str) -> Any:
    return cel.NewEnv(variables=dict.fromkeys(CEL_VARIABLES, cel.Type.DYN)).compile(text)


def _outcome(text: str, data: dict[str, Any]) -> bool | None:
    """Evaluate on the whole object; None if it fails or the result is not boolean."""
    value = _compiled(text).eval(data=data)
    result = value.plain_value()
    return result if value.type() != cel.Type.ERROR and isinstance(result, bool) else None


EXPRESSIONS = (
    [text for text, _ in HOLDS.values()]
    + [*FAILS.values()]
    + [
        "has(object.metadata)",
        "has(object.metadata.labels) && object.metadata.labels == {'a': 'b'}",
        "object.metadata == {} || has(object.metadata.name)",
        "'metadata' in object",
        "object.metadata.size() == 1",
        "size(object) == 2",
        "type(object.metadata) == map",
        "object.metadata.labels.all(key, key.startsWith('a'))",
        "[object.metadata, object.spec].all(x, x != null)",
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "main", "n"]))
NAMES = st.sampled_from(["name", "labels", "annotations", "nodeName", "a", "containers", "image"])
PARTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.one_of(PARTS, st.dictionaries(st.sampled_from(["metadata", "spec", "kind"]), PARTS, max_size=3))


@given(st.sampled_from(EXPRESSIONS), OBJECTS)
def test_pruning_does_not_change_the_result(text: str, data: Any) -> None:
    """Pruned and whole objects have the same result or both fail."""
    variables = {**VARIABLES, "object": data}
    try:
        outcome: bool | None = compile_match_condition("c", text).evaluate(variables)
    except ConditionError:
        outcome = None
    assert outcome == _outcome(text, variables)
