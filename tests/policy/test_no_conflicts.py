"""Policies with equal values do not conflict, and conditions accept numbers of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policy.policy_texts import policy_text
from webhook.policy.loader import load_policies
from webhook.policy.match_conditions import compile_match_condition

AGREEING: dict[str, dict[str, Any]] = {
    "the same label": {"labels": {"example.com/a": "b"}},
    "the same runtime class": {"runtimeClassName": "nvidia"},
    "the same spread": {"spread": "required"},
}


@pytest.mark.parametrize("injection", AGREEING.values(), ids=AGREEING)
def test_equal_injections_do_not_conflict(injection: dict[str, Any]) -> None:
    loaded = load_policies([(f"{name}.yaml", policy_text(name, injection=injection)) for name in ("a", "b")])
    assert [str(error) for error in loaded.errors] == []


NUMBERS = {
    "a fraction": ("object.share < 0.5 && object.kind == 'x'", True),
    "a large number": ("object.share * 1e300 > 1.0", True),
    "an unsigned number": ("uint(size(object.kind)) == 1u", True),
    "a negative number": ("object.share > -1.0", True),
    "a fraction equal to the bound": ("object.share < 0.25", False),
}


@pytest.mark.parametrize(("text", "holds"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_in_conditions(text: str, holds: bool) -> None:
    variables: dict[str, Any] = {"object": {"share": 0.25, "kind": "x"}, "oldObject": None, "request": {}}
    assert compile_match_condition("c", text).evaluate(variables | {"namespaceObject": {}}) is holds
