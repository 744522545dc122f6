"""Combining policies from files and objects: files take precedence, and invalid sources do not affect others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

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
    """Each policy of a set, with its mode."""
    assert combined.policies is not None
    return {each.name: each.mode.name.lower() for each in combined.policies.policies}


class Case(NamedTuple):
    """Sources, last valid versions, and the expected result."""

    objects: list[tuple[str, str]]
    want: dict[str, str]
    files: tuple[tuple[str, str], ...] = (FILE,)
    good: LastLoaded = LastLoaded()
    faults: tuple[str, ...] = ()


CASES = {
    "an object joins the files": Case([("GPUPolicy/o", policy("o"))], {"f": "warn", "o": "warn"}),
    "on equal names the file wins, and all is well": Case([("GPUPolicy/f", policy("f", "enforce"))], {"f": "warn"}),
    "a bad object is left out, the others stay": Case(
        [("GPUPolicy/o", policy("o")), ("GPUPolicy/x", BAD)], {"f": "warn", "o": "warn"}, faults=("GPUPolicy/x",)
    ),
    "a bad object stays as it was when it last loaded, and others change": Case(
        [("GPUPolicy/o", policy("o", "enforce")), ("GPUPolicy/x", BAD)],
        {"f": "warn", "o": "enforce", "x": "warn"},
        good=LastLoaded((FILE,), {"GPUPolicy/o": policy("o"), "GPUPolicy/x": policy("x")}),
        faults=("GPUPolicy/x",),
    ),
    "an object that is gone is gone": Case([], {"f": "warn"}, good=LastLoaded((FILE,), {"GPUPolicy/o": policy("o")})),
    "bad files stay as they were, and objects go on": Case(
        [("GPUPolicy/o", policy("o"))],
        {"f": "warn", "o": "warn"},
        files=(("policies/f.yaml", BAD),),
        good=LastLoaded((FILE,), {}),
        faults=("policies/f.yaml",),
    ),
    "an exception to no policy is left out": Case(
        [("GPUPolicyException/e", exception("e", "nobody"))], {"f": "warn"}, faults=("GPUPolicyException/e",)
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
    assert [fault.partition(":")[0] for fault in combined.errors] == list(case.faults)


def test_the_last_valid_version_is_the_fallback() -> None:
    first = combine_sources((FILE,), [("GPUPolicy/o", policy("o"))], LastLoaded(), load_policies)
    second = combine_sources((FILE,), [("GPUPolicy/o", policy("o", "loud"))], first.last_loaded, load_policies)
    third = combine_sources((FILE,), [("GPUPolicy/o", policy("o", "loud"))], second.last_loaded, load_policies)
    assert (names(second), names(third)) == (names(first), names(first))
    assert third.errors == second.errors != {}


def test_files_that_never_loaded_are_no_set() -> None:
    combined = combine_sources((("policies/f.yaml", BAD),), [], LastLoaded(), load_policies)
    assert names(combined) == {}, "nothing was good before, and nothing is left"
    assert [fault.partition(":")[0] for fault in combined.errors] == ["policies/f.yaml"]
