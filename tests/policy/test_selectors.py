"""Matchers for globs, labels and namespaces."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_timer import CpuTimer
from webhook.model.pods import NodeSelectorRequirement
from webhook.policy.selectors import glob_matcher, label_matcher, namespace_matcher

GLOBS = {
    "a name matches itself": (["kube-system"], "kube-system", True),
    "a name does not match a longer one": (["kube-system"], "kube-system-2", False),
    "a final newline is not ignored": (["kube-system"], "kube-system\n", False),
    "case matters": (["team"], "Team", False),
    "a homoglyph does not match": (["kube-system"], "kubе-system", False),
    "a dot is literal": (["a.b"], "axb", False),
    "a star matches any text": (["team-*"], "team-a-b", True),
    "a star matches empty text": (["team-*"], "team-", True),
    "the text before a star must match": (["team-*"], "steam-a", False),
    "a star in the middle": (["team-*-dev"], "team-a-b-dev", True),
    "the text after a star must match to the end": (["team-*-dev"], "team-a-dev2", False),
    "a star matches a newline": (["a*b"], "a\nb", True),
    "a question mark matches one character": (["team-?"], "team-a", True),
    "a question mark does not match two": (["team-?"], "team-ab", False),
    "a question mark does not match none": (["team-?"], "team-", False),
    "one of several": (["x", "team-*", "*-dev"], "ml-dev", True),
    "none of several": (["x", "team-*", "*-dev"], "y", False),
    "everything": (["*"], "anything", True),
    "nothing": ([], "anything", False),
}


@pytest.mark.parametrize(("patterns", "name", "matches"), GLOBS.values(), ids=GLOBS)
def test_globs(patterns: list[str], name: str, matches: bool) -> None:
    assert glob_matcher(patterns)(name) is matches


@given(st.text("ab*?.", max_size=8), st.text("ab.\n", max_size=8))
def test_globs_match_as_in_a_shell(pattern: str, name: str) -> None:
    assert glob_matcher([pattern])(name) == fnmatchcase(name, pattern)


def test_matching_takes_linear_time() -> None:
    matches = glob_matcher(["*a" * 120 + "b"])
    with CpuTimer() as timer:
        assert not matches("a" * 10_000)
    assert timer.seconds < 0.5


LABELS = {
    "In, with the value": (("a", "In", ("x", "y")), {"a": "y"}, True),
    "In, with another value": (("a", "In", ("x",)), {"a": "z"}, False),
    "In, without the label": (("a", "In", ("x",)), {}, False),
    "NotIn, with the value": (("a", "NotIn", ("x",)), {"a": "x"}, False),
    "NotIn, without the label": (("a", "NotIn", ("x",)), {}, True),
    "Exists, with an empty value": (("a", "Exists", ()), {"a": ""}, True),
    "Exists, without the label": (("a", "Exists", ()), {"b": ""}, False),
    "DoesNotExist, with the label": (("a", "DoesNotExist", ()), {"a": ""}, False),
    "DoesNotExist, without the label": (("a", "DoesNotExist", ()), {}, True),
}


@pytest.mark.parametrize(("requirement", "found", "matches"), LABELS.values(), ids=LABELS)
def test_labels(requirement: tuple[str, str, tuple[str, ...]], found: dict[str, str], matches: bool) -> None:
    key, operator, values = requirement
    test = label_matcher([NodeSelectorRequirement(key=key, operator=operator, values=values)])
    assert test is not None
    assert test(found) is matches


def test_every_requirement_must_hold() -> None:
    test = label_matcher(
        [NodeSelectorRequirement(key="a", operator="Exists"), NodeSelectorRequirement(key="b", operator="DoesNotExist")]
    )
    assert test is not None
    assert test({"a": "1"})
    assert not test({"a": "1", "b": "2"})


def test_without_requirements_there_is_no_matcher() -> None:
    assert label_matcher([]) is None


def test_a_namespace_has_its_name_as_a_label() -> None:
    by_name = label_matcher(
        [NodeSelectorRequirement(key="kubernetes.io/metadata.name", operator="In", values=("team",))]
    )
    test = namespace_matcher(None, [], by_name)
    assert test("team", {})
    assert not test("other", {})
    assert test("other", {"kubernetes.io/metadata.name": "team"})


def test_exclusion_overrides_inclusion() -> None:
    test = namespace_matcher(["team-*"], ["*-free"], None)
    assert test("team-a", {})
    assert not test("team-free", {})
    assert not test("ml", {})
