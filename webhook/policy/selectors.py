"""Compile globs, label selectors and namespace selectors to functions.

Globs match the whole name, and RE2 runs them in linear time. Label selectors follow Kubernetes
(`apimachinery/pkg/labels`): NotIn and DoesNotExist match a missing label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import re2

from webhook.model.cluster_view import NAMESPACE_NAME
from webhook.model.pods import NodeSelectorRequirement

NameMatcher = Callable[[str], bool]
LabelMatcher = Callable[[Mapping[str, str]], bool]
NamespaceMatcher = Callable[[str, Mapping[str, str]], bool]


def is_literal(pattern: str) -> bool:
    """Return whether a pattern has no wildcards."""
    return "*" not in pattern and "?" not in pattern


def glob_matcher(patterns: Iterable[str]) -> NameMatcher:
    """Return a matcher for names that match at least one pattern; "*" is any text, "?" one character.

    >>> matches = glob_matcher(["team-*", "ml"])
    >>> matches("team-vision"), matches("ml"), matches("ml-2")
    (True, True, False)
    """
    names = frozenset(filter(is_literal, patterns := tuple(patterns)))
    wild = [pattern for pattern in patterns if not is_literal(pattern)]
    if not wild:
        return names.__contains__
    if all(pattern.endswith("*") and is_literal(pattern[:-1]) for pattern in wild):
        prefixes = tuple(pattern[:-1] for pattern in wild)
        return lambda name: name in names or name.startswith(prefixes)
    regexes = (re.escape(pattern).replace(r"\*", "(?s:.*)").replace(r"\?", "(?s:.)") for pattern in wild)
    expression = re2.compile("|".join(f"(?:{regex})" for regex in regexes))
    return lambda name: name in names or expression.fullmatch(name) is not None


def any_labels(_labels: Mapping[str, str]) -> bool:
    """Match every object: the matcher of an exemption without a label selector."""
    return True


def label_matcher(requirements: Sequence[NodeSelectorRequirement]) -> LabelMatcher | None:
    """Return a matcher for labels that satisfy every requirement; None without requirements."""
    if not requirements:
        return None
    tests = tuple(map(_requirement_matcher, requirements))
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def _requirement_matcher(requirement: NodeSelectorRequirement) -> LabelMatcher:
    key, values = requirement.key, frozenset(requirement.values)
    match requirement.operator:
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case "Exists":
            return lambda labels: key in labels
        case _:
            return lambda labels: key not in labels


def namespace_matcher(
    included: Sequence[str] | None, excluded: Sequence[str], selector: LabelMatcher | None
) -> NamespaceMatcher:
    """Return a matcher for namespaces by name and labels.

    Args:
        included: Globs; a name must match at least one. None for every name.
        excluded: Globs; a name must match none.
        selector: Matcher for the labels; the label with the namespace's name always counts as present.
    """
    is_included = glob_matcher(included) if included is not None else None
    is_excluded = glob_matcher(excluded)

    def test(name: str, labels: Mapping[str, str]) -> bool:
        if (is_included is not None and not is_included(name)) or is_excluded(name):
            return False
        if selector is None:
            return True
        return selector(labels if NAMESPACE_NAME in labels or not name else {**labels, NAMESPACE_NAME: name})

    return test
