"""Matchers for globs, labels and namespaces."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.model.pods import NodeSelectorRequirement
from webhook.policy.selectors import glob_matcher, label_matcher, namespace_matcher

GLOBS = {
    "a name is only itself": (["kube-system"], "kube-system", True),
    "a longer name is another": (["kube-system"], "kube-system-2", False),
    "a newline is another character": (["kube-system"], "kube-system\n", False),
    "capitals are other letters": (["team"], "Team", False),
    "a letter that looks alike is another": (["kube-system"], "kubе-system", False),
    "a dot is a dot": (["a.b"], "axb", False),
    "a star is any text": (["team-*"], "team-a-b", True),
    "a star is no text": (["team-*"], "team-", True),
    "a star needs what stands before it": (["team-*"], "steam-a", False),
    "a star in the middle": (["team-*-dev"], "team-a-b-dev", True),
    "a star in the middle, and more behind": (["team-*-dev"], "team-a-dev2", False),
    "a star and a newline": (["a*b"], "a\nb", True),
    "a question mark is one character": (["team-?"], "team-a", True),
    "a question mark is not two": (["team-?"], "team-ab", False),
    "a question mark is not none": (["team-?"], "team-", False),
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
    started = time.process_time()
    assert not matches("a" * 10_000)
    assert time.process_time() - started < 0.5


LABELS = {
    "In, and it is": (("a", "In", ("x", "y")), {"a": "y"}, True),
    "In, and it is not": (("a", "In", ("x",)), {"a": "z"}, False),
    "In, and there is none": (("a", "In", ("x",)), {}, False),
    "NotIn, and it is": (("a", "NotIn", ("x",)), {"a": "x"}, False),
    "NotIn, and there is none": (("a", "NotIn", ("x",)), {}, True),
    "Exists, with an empty value": (("a", "Exists", ()), {"a": ""}, True),
    "Exists, and there is none": (("a", "Exists", ()), {"b": ""}, False),
    "DoesNotExist, and there is one": (("a", "DoesNotExist", ()), {"a": ""}, False),
    "DoesNotExist, and there is none": (("a", "DoesNotExist", ()), {}, True),
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


def test_no_requirements_are_no_matcher() -> None:
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
