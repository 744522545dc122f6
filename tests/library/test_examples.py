"""The result of each example pod with the whole library on the example cluster, as in `demo`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jsonpatch
import pytest

from tests.conftest import ROOT
from webhook.audit.evaluate import EvaluationContext, evaluate_object
from webhook.audit.object_files import SourceObject, read_objects
from webhook.cache.snapshot import read_snapshot
from webhook.policy.loader import load_policies
from webhook.report.results import CheckResult, CheckVerdict

EXAMPLES = ROOT / "examples" / "pods"
FILES = sorted(EXAMPLES.glob("*.yaml"))


class Story(NamedTuple):
    """The expected outcome of one example.

    Attributes:
        denied: Codes of all rejections.
        warned: Codes that must be among the user's warnings.
        gpus: GPU limits of the first container after the patch; None: it has no containers of its own.
        choices: Names of the choices of a claim's first request after the patch.
    """

    verdict: CheckVerdict
    gpus: dict[str, str] | None
    denied: frozenset[str] = frozenset()
    warned: frozenset[str] = frozenset()
    choices: tuple[str, ...] = ()


def codes(*found: str) -> frozenset[str]:
    """Return finding codes with their prefix."""
    return frozenset(found)


WHOLE = {"nvidia.com/gpu": "1"}

STORIES = {
    "01-notebook-8gb": Story(CheckVerdict.WARNED, {"nvidia.com/mig-1g.10gb": "1"}, warned=codes("GPU-R101")),
    "02-inference-16gb": Story(CheckVerdict.WARNED, {"nvidia.com/mig-2g.20gb": "1"}, warned=codes("GPU-R101")),
    "03-shared-notebook": Story(CheckVerdict.WARNED, {"nvidia.com/gpu.shared": "1"}, warned=codes("GPU-R101")),
    "04-three-gpus": Story(CheckVerdict.DENIED, {"nvidia.com/gpu": "3"}, denied=codes("GPU-L102")),
    "05-training-8-gpus": Story(CheckVerdict.ALLOWED, {"nvidia.com/gpu": "8"}),
    "06-visible-devices": Story(CheckVerdict.DENIED, {}, denied=codes("GPU-S101")),
    "07-privileged": Story(CheckVerdict.DENIED, WHOLE, denied=codes("GPU-S201")),
    "08-two-mps-shares": Story(CheckVerdict.DENIED, {"nvidia.com/gpu": "2"}, denied=codes("GPU-T102")),
    "09-missing-profile": Story(CheckVerdict.WARNED, {"nvidia.com/mig-1g.5gb": "1"}, warned=codes("GPU-T201")),
    "10-cuda-too-new": Story(CheckVerdict.WARNED, WHOLE, warned=codes("GPU-C101")),
    "11-limit-range-gave-gpus": Story(CheckVerdict.WARNED, WHOLE, warned=codes("GPU-L202")),
    "12-cpu-only": Story(CheckVerdict.NO_GPU, {}),
    "13-deployment": Story(CheckVerdict.DENIED, None, warned=codes("GPU-R101", "GPU-S105")),
    "14-keep": Story(CheckVerdict.WARNED, WHOLE, warned=codes("GPU-T302")),
    "15-over-quota": Story(CheckVerdict.DENIED, {"nvidia.com/gpu": "8"}, denied=codes("GPU-Q301")),
    "16-no-device": Story(CheckVerdict.WARNED, None, warned=codes("GPU-D101")),
    "17-claim-8gb": Story(
        CheckVerdict.WARNED,
        None,
        warned=codes("GPU-R101"),
        choices=("mig-1g-10gb", "mig-2g-20gb", "mig-3g-40gb", "requested"),
    ),
}


@pytest.fixture(scope="module")
def context() -> EvaluationContext:
    """Return the whole library and the example cluster."""
    loaded = load_policies([(str(file), file.read_text()) for file in sorted((ROOT / "policies").glob("*.yaml"))])
    assert loaded.policies is not None
    return EvaluationContext(
        policies=loaded.policies, view=read_snapshot("demo").view, now=datetime(2026, 6, 1, tzinfo=UTC)
    )


def only_object(file: Path) -> SourceObject:
    """Return the only object of an example."""
    (entry,) = read_objects([str(file)])
    assert isinstance(entry, SourceObject)
    return entry


def after(checked: CheckResult) -> dict[str, Any]:
    """Return the object after its patch."""
    patched: dict[str, Any] = jsonpatch.apply_patch(checked.stored, json.dumps(checked.decision.patch))
    return patched


def gpus_of(pod: dict[str, Any]) -> dict[str, str]:
    """Return the GPU limits of the first container."""
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return {name: amount for name, amount in limits.items() if name.startswith("nvidia.com/")}


def test_each_example_has_an_expected_outcome() -> None:
    assert [file.stem for file in FILES] == sorted(STORIES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_has_the_documented_outcome(file: Path, context: EvaluationContext) -> None:
    story, checked = STORIES[file.stem], evaluate_object(only_object(file), context)
    assert {found.code for found in checked.decision.denials} == story.denied
    assert {found.code for found in checked.decision.warnings} >= story.warned
    assert checked.verdict is story.verdict
    if story.choices:
        (request,) = after(checked)["spec"]["devices"]["requests"]
        assert tuple(each["name"] for each in request["firstAvailable"]) == story.choices
    elif story.gpus is None:
        assert checked.decision.patch == ()
    else:
        assert gpus_of(after(checked)) == story.gpus


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_right_sized_example_is_not_changed_again(file: Path, context: EvaluationContext) -> None:
    entry = only_object(file)
    first = evaluate_object(entry, context)
    second = evaluate_object(SourceObject(after(first), entry.document, entry.prefix), context)
    assert second.decision.patch == ()
    assert {found.code for found in second.decision.denials} == {found.code for found in first.decision.denials}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_first_line_of_an_example_describes_it(file: Path) -> None:
    assert file.read_text().startswith("# ")
