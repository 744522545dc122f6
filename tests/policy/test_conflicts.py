"""Policies with different values conflict exactly if one pod may match both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_timer import CpuTimer
from tests.policy.policy_texts import policy_text
from webhook.policy.lint import globs_overlap
from webhook.policy.loader import load_policies
from webhook.policy.selectors import glob_matcher

ANY: dict[str, Any] = {}


def labels(**values: str) -> dict[str, Any]:
    return {"matchLabels": values}


def expression(operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "a", "operator": operator, "values": list(values)}]}


OVERLAP = {
    "both match everything": (ANY, ANY, True),
    "one matches everything": (ANY, {"namespaces": ["a"]}, True),
    "different namespaces": ({"namespaces": ["a"]}, {"namespaces": ["b", "c"]}, False),
    "a common namespace": ({"namespaces": ["a", "b"]}, {"namespaces": ["b"]}, True),
    "a namespace and a pattern that matches it": ({"namespaces": ["team-a"]}, {"namespaces": ["team-*"]}, True),
    "a namespace and a pattern that does not match it": ({"namespaces": ["ml"]}, {"namespaces": ["team-*"]}, False),
    "patterns that match a common name": ({"namespaces": ["team-*"]}, {"namespaces": ["*-dev"]}, True),
    "patterns without a common name": ({"namespaces": ["team-*"]}, {"namespaces": ["ml-*"]}, False),
    "one excludes the pattern of the other": ({"namespaces": ["team-*"]}, {"excludeNamespaces": ["team-*"]}, False),
    "one excludes one name of the other's pattern": (
        {"namespaces": ["team-*"]},
        {"excludeNamespaces": ["team-a"]},
        True,
    ),
    "one excludes every name of the other": ({"namespaces": ["team-a"]}, {"excludeNamespaces": ["team-*"]}, False),
    "one matches only an excluded namespace": ({"namespaces": ["kube-system"]}, ANY, False),
    "different resources": ({"resources": ["nvidia.com/gpu"]}, {"resources": ["nvidia.com/mig-*"]}, False),
    "a common resource": ({"resources": ["nvidia.com/*"]}, {"resources": ["nvidia.com/mig-*"]}, True),
    "one matches any resource": ({"resources": ["nvidia.com/gpu"]}, ANY, True),
    "different operations": ({"operations": ["CREATE"]}, {"operations": ["UPDATE"]}, False),
    "different values of a label": ({"objectSelector": labels(a="1")}, {"objectSelector": labels(a="2")}, False),
    "labels with different keys": ({"objectSelector": labels(a="1")}, {"objectSelector": labels(b="2")}, True),
    "a label and its absence": (
        {"objectSelector": labels(a="1")},
        {"objectSelector": expression("DoesNotExist")},
        False,
    ),
    "a label value, and NotIn with another": (
        {"objectSelector": labels(a="1")},
        {"objectSelector": expression("NotIn", "2")},
        True,
    ),
    "a label value, and NotIn with the same": (
        {"objectSelector": labels(a="1")},
        {"objectSelector": expression("NotIn", "1")},
        False,
    ),
    "DoesNotExist twice": (
        {"objectSelector": expression("DoesNotExist")},
        {"objectSelector": expression("DoesNotExist")},
        True,
    ),
    "Exists and DoesNotExist": (
        {"objectSelector": expression("Exists")},
        {"objectSelector": expression("DoesNotExist")},
        False,
    ),
    "Exists, and NotIn with a value": (
        {"objectSelector": expression("Exists")},
        {"objectSelector": expression("NotIn", "1")},
        True,
    ),
    "different values of a namespace label": (
        {"namespaceSelector": labels(tier="a")},
        {"namespaceSelector": labels(tier="b")},
        False,
    ),
    "conditions that cannot be compared": (
        {"matchConditions": [{"name": "a", "expression": "object.x == 1"}]},
        {"matchConditions": [{"name": "a", "expression": "object.x == 2"}]},
        True,
    ),
}


@pytest.mark.parametrize(("one", "other", "overlap"), OVERLAP.values(), ids=OVERLAP)
def test_may_overlap(one: dict[str, Any], other: dict[str, Any], overlap: bool) -> None:
    texts = [
        ("a.yaml", policy_text("a", match=one, injection={"runtimeClassName": "x"})),
        ("b.yaml", policy_text("b", match=other, injection={"runtimeClassName": "z"})),
    ]
    for ordered in (texts, texts[::-1]):
        assert [error.code for error in load_policies(ordered).errors] == ["GPU-P104"] * overlap


def required(operator: str, *values: str) -> dict[str, Any]:
    return {"nodeAffinity": {"required": [{"key": "k", "operator": operator, "values": list(values)}]}}


def toleration(key: str, seconds: int, **more: str) -> dict[str, Any]:
    return {"tolerations": [{"key": key, "effect": "NoExecute", "tolerationSeconds": seconds, **more}]}


CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "equal runtime classes": ({"runtimeClassName": "x"}, {"runtimeClassName": "x"}, []),
    "one runtime class": ({"runtimeClassName": "x"}, {}, []),
    "spread twice": ({"spread": "required"}, {"spread": "preferred"}, ["spec.injection.spread"]),
    "spread in only one": ({"spread": "required"}, {"labels": {"x": "1"}}, []),
    "a label with two values": ({"labels": {"x": "1"}}, {"labels": {"x": "2"}}, ["spec.injection.labels.x"]),
    "labels with two keys": ({"labels": {"x": "1"}}, {"labels": {"z": "2"}}, []),
    "affinities without a common node": (
        required("In", "a"),
        required("In", "b", "c"),
        ["spec.injection.nodeAffinity.required[0]"],
    ),
    "affinities with a common node": (required("In", "a", "b"), required("In", "b", "c"), []),
    "affinity to a label and to its absence": (
        required("Exists"),
        required("DoesNotExist"),
        ["spec.injection.nodeAffinity.required[0]"],
    ),
    "affinity auto beside a list": ({"nodeAffinity": "auto"}, required("In", "b"), []),
    "tolerations add up": ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, []),
    "one toleration twice": ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "a"}]}, []),
    "one taint, with every value and with one value": (
        {"tolerations": [{"key": "a", "operator": "Exists"}]},
        {"tolerations": [{"key": "a", "value": "x"}]},
        [],
    ),
    "one taint tolerated for different times": (
        toleration("a", 60),
        toleration("a", 300),
        ["spec.injection.tolerations[0]"],
    ),
    "one taint tolerated for equal times": (toleration("a", 60), toleration("a", 60), []),
    "two taints tolerated for different times": (toleration("a", 60), toleration("b", 300), []),
    "two values of one taint": (toleration("a", 60, value="x"), toleration("a", 300, value="y"), []),
    "every value and one value, for different times": (
        toleration("a", 60, operator="Exists"),
        toleration("a", 300, value="y"),
        ["spec.injection.tolerations[0]"],
    ),
    "for a time and forever": (
        toleration("a", 60),
        {"tolerations": [{"key": "b"}, {"key": "a"}]},
        ["spec.injection.tolerations[1]"],
    ),
    "for a time, and forever with an effect that does not evict": (
        toleration("a", 60),
        {"tolerations": [{"key": "a", "effect": "NoSchedule"}]},
        [],
    ),
    "tolerations auto beside a list": ({"tolerations": "auto"}, toleration("a", 60), []),
    "several fields": (
        {"runtimeClassName": "x", "labels": {"x": "1"}},
        {"runtimeClassName": "z", "labels": {"x": "2"}},
        ["spec.injection.runtimeClassName", "spec.injection.labels.x"],
    ),
}


@pytest.mark.parametrize(("one", "other", "paths"), CONFLICTS.values(), ids=CONFLICTS)
def test_conflicting_injections(one: dict[str, Any], other: dict[str, Any], paths: list[str]) -> None:
    loaded = load_policies([("a.yaml", policy_text("a", injection=one)), ("b.yaml", policy_text("b", injection=other))])
    assert [error.message.split(":")[0] for error in loaded.errors] == paths


def default_rule(key: str, amount: str, resource: str = "cpu") -> dict[str, Any]:
    return {key: [{"resource": resource, "default": amount}]}


DEFAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "the same default for each container": (default_rule("perContainer", "2"), default_rule("perContainer", "2"), []),
    "the same amount in another notation": (
        default_rule("perContainer", "2"),
        default_rule("perContainer", "2000m"),
        [],
    ),
    "two defaults for each container": (
        default_rule("perContainer", "2"),
        default_rule("perContainer", "4"),
        ["spec.limits.perContainer[0].default"],
    ),
    "two defaults for each GPU": (
        default_rule("perGPU", "2"),
        default_rule("perGPU", "4"),
        ["spec.limits.perGPU[0].default"],
    ),
    "a default for each container and one for each GPU": (
        default_rule("perContainer", "2"),
        default_rule("perGPU", "2"),
        ["spec.limits.perGPU[0].default"],
    ),
    "defaults of two resources": (default_rule("perGPU", "2"), default_rule("perGPU", "4", "memory"), []),
    "a default and a bound": (default_rule("perGPU", "2"), {"perGPU": [{"resource": "cpu", "max": "4"}]}, []),
}


@pytest.mark.parametrize(("one", "other", "paths"), DEFAULTS.values(), ids=DEFAULTS)
def test_conflicting_defaults(one: dict[str, Any], other: dict[str, Any], paths: list[str]) -> None:
    texts = [("a.yaml", policy_text("a", limits=one)), ("b.yaml", policy_text("b", limits=other))]
    loaded = load_policies(texts)
    assert [error.message.split(":")[0] for error in loaded.errors] == paths
    assert {error.code for error in loaded.errors} == ({"GPU-P104"} if paths else set())
    assert len(load_policies(texts[::-1]).errors) == len(paths)


def test_defaults_of_disjoint_policies() -> None:
    texts = [
        (name, policy_text(name, match={"namespaces": [name]}, limits=default_rule("perGPU", amount)))
        for name, amount in (("a", "2"), ("b", "4"))
    ]
    assert load_policies(texts).errors == ()


def test_the_error_names_the_default() -> None:
    (error,) = load_policies(
        [
            ("a.yaml", policy_text("first", limits=default_rule("perContainer", "2"))),
            ("b.yaml", policy_text("second", limits=default_rule("perGPU", "2"))),
        ]
    ).errors
    assert "found 2 for each GPU here in 'second' and 2 for each container at a.yaml:1:" in str(error)


def test_the_message_names_both_policies_and_locations() -> None:
    loaded = load_policies(
        [
            ("a.yaml", policy_text("first", injection={"runtimeClassName": "x"})),
            ("b.yaml", policy_text("second", injection={"runtimeClassName": "z"})),
        ]
    )
    (error,) = loaded.errors
    assert str(error) == (
        "b.yaml:1:139: spec.injection.runtimeClassName: must agree with policy 'first', which may match the same "
        "pod, found 'z' here in 'second' and 'x' at a.yaml:1:138. Write the same value in both, or make their "
        "matches disjoint"
    )


GLOBS = st.text("ab*?", max_size=5)


@given(GLOBS, GLOBS, st.text("ab", max_size=6))
def test_globs_that_match_one_name_overlap(one: str, other: str, name: str) -> None:
    if glob_matcher([one])(name) and glob_matcher([other])(name):
        assert globs_overlap(one, other)


@given(GLOBS, st.text("ab", max_size=6))
def test_a_glob_overlaps_a_name_if_it_matches(pattern: str, name: str) -> None:
    assert globs_overlap(pattern, name) == globs_overlap(name, pattern) == glob_matcher([pattern])(name)


def test_500_policies_of_one_namespace_each_are_compared_quickly() -> None:
    names = [f"team-with-a-long-name-{index}" for index in range(500)]
    limits = {"perPod": [{"resource": "nvidia.com/gpu", "max": 4}]}
    texts = [(f"{name}.yaml", policy_text(name, match={"namespaces": [name]}, limits=limits)) for name in names]
    with CpuTimer() as timer:
        assert not load_policies(texts).errors
    assert timer.seconds < 15, "it took a minute when each pair of globs was compared letter by letter"
