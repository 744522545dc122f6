"""Combining policies from files and objects: files take precedence, and invalid sources do not affect others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from webhook.cache.policy_objects import PolicyObjects
from webhook.policy.loader import load_policies
from webhook.server.policy_sources import CombinedPolicies, LastLoaded, combine_sources

HEAD = "apiVersion: rightslice.dev/v1alpha1\n"


def policy(name: str, mode: str = "warn") -> str:
    spec = f"{{mode: {mode}, security: {{deny: [visibleDevicesEnv]}}}}"
    return f"{HEAD}kind: GPUPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def exception(name: str, of: str) -> str:
    spec = f"{{policyName: {of}, codes: [GPU-S101], match: {{namespaces: [team]}}, reason: because we must"
    return (
        f"{HEAD}kind: GPUPolicyException\nmetadata: {{name: {name}, namespace: rightslice-system}}\n"
        f"spec: {spec}, expirationTime: '2027-01-01T00:00:00Z'}}\n"
    )


BAD = policy("x", "loud")
FILE = ("policies/f.yaml", policy("f"))


def names(combined: CombinedPolicies) -> dict[str, str]:
    """Return the mode of each policy of a set by name."""
    assert combined.policies is not None
    return {each.name: each.mode.name.lower() for each in combined.policies.policies}


class Case(NamedTuple):
    """Sources, last valid versions, and the expected result."""

    objects: list[tuple[str, str]]
    want: dict[str, str]
    files: tuple[tuple[str, str], ...] = (FILE,)
    good: LastLoaded = LastLoaded()
    errors: tuple[str, ...] = ()


CASES = {
    "an object besides a file": Case([("GPUPolicy/o", policy("o"))], {"f": "warn", "o": "warn"}),
    "a file takes precedence over an object of the same name": Case(
        [("GPUPolicy/f", policy("f", "enforce"))], {"f": "warn"}
    ),
    "an invalid object is left out, and the others stay": Case(
        [("GPUPolicy/o", policy("o")), ("GPUPolicy/x", BAD)], {"f": "warn", "o": "warn"}, errors=("GPUPolicy/x",)
    ),
    "an invalid object keeps its last valid version, and others change": Case(
        [("GPUPolicy/o", policy("o", "enforce")), ("GPUPolicy/x", BAD)],
        {"f": "warn", "o": "enforce", "x": "warn"},
        good=LastLoaded((FILE,), {"GPUPolicy/o": policy("o"), "GPUPolicy/x": policy("x")}),
        errors=("GPUPolicy/x",),
    ),
    "a deleted object is removed": Case([], {"f": "warn"}, good=LastLoaded((FILE,), {"GPUPolicy/o": policy("o")})),
    "invalid files keep their last valid version, and objects change": Case(
        [("GPUPolicy/o", policy("o"))],
        {"f": "warn", "o": "warn"},
        files=(("policies/f.yaml", BAD),),
        good=LastLoaded((FILE,), {}),
        errors=("policies/f.yaml",),
    ),
    "an exception without its policy is left out": Case(
        [("GPUPolicyException/e", exception("e", "missing"))], {"f": "warn"}, errors=("GPUPolicyException/e",)
    ),
    "an exception follows its policy, whether that is a file or an object": Case(
        [
            ("GPUPolicy/o", policy("o")),
            ("GPUPolicyException/e", exception("e", "f")),
            ("GPUPolicyException/g", exception("g", "o")),
        ],
        {"f": "warn", "o": "warn"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sources(case: Case) -> None:
    combined = combine_sources(case.files, case.objects, case.good, load_policies)
    assert names(combined) == case.want
    assert [error.partition(":")[0] for error in combined.errors] == list(case.errors)


def test_the_last_valid_version_is_the_fallback() -> None:
    first = combine_sources((FILE,), [("GPUPolicy/o", policy("o"))], LastLoaded(), load_policies)
    second = combine_sources((FILE,), [("GPUPolicy/o", policy("o", "loud"))], first.last_loaded, load_policies)
    third = combine_sources((FILE,), [("GPUPolicy/o", policy("o", "loud"))], second.last_loaded, load_policies)
    assert (names(second), names(third)) == (names(first), names(first))
    assert third.errors == second.errors != {}


def test_there_is_no_set_if_files_never_loaded() -> None:
    combined = combine_sources((("policies/f.yaml", BAD),), [], LastLoaded(), load_policies)
    assert names(combined) == {}, "there is no valid version"
    assert [error.partition(":")[0] for error in combined.errors] == ["policies/f.yaml"]


def contradicting(name: str, runtime: str) -> tuple[str, str]:
    """An object that sets the runtime class of every GPU pod."""
    text = f"{HEAD}kind: GPUPolicy\nmetadata: {{name: {name}}}\nspec: {{injection: {{runtimeClassName: {runtime}}}}}\n"
    return f"GPUPolicy/{name}", text


@pytest.mark.parametrize("newer", ["a", "z"])
def test_of_two_objects_that_contradict_each_other_the_active_one_stays(newer: str) -> None:
    active = contradicting("m", "nvidia")
    first = combine_sources((), [active], LastLoaded(), load_policies)
    both = sorted([active, contradicting(newer, "kata")])
    second = combine_sources((), both, first.last_loaded, load_policies)

    assert list(names(second)) == ["m"]
    [(source, unused)] = second.unused.items()
    assert source == f"GPUPolicy/{newer}"
    assert unused.reason == "Conflict"
    assert "must agree with policy 'm'" in unused.message
    assert list(names(combine_sources((), both, second.last_loaded, load_policies))) == ["m"], "at the next load too"


def test_a_restarted_replica_keeps_the_older_of_two_objects() -> None:
    objects = PolicyObjects()
    for name, runtime, created in (("a", "kata", "2026-06-02T00:00:00Z"), ("b", "nvidia", "2026-06-01T00:00:00Z")):
        spec = {"injection": {"runtimeClassName": runtime}}
        objects.policies.upsert({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec})

    assert list(names(combine_sources((), objects.texts(), LastLoaded(), load_policies))) == ["b"]


def test_the_digest_does_not_depend_on_the_order_of_sources() -> None:
    objects = [
        ("GPUPolicy/o", policy("o")),
        ("GPUPolicyException/e", exception("e", "o")),
        ("GPUPolicyException/g", exception("g", "o")),
    ]
    sets = [combine_sources((), order, LastLoaded(), load_policies).policies for order in (objects, objects[::-1])]

    assert len({each.digest for each in sets if each is not None}) == 1
