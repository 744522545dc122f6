"""The shipped policies: they load together, each is tested, and its tests hold."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import ROOT
from webhook.audit.policy_tests import run_test_file
from webhook.policy.loader import LoadResult, load_policies
from webhook.well_known import EXCLUDED_NAMESPACES

POLICIES = ROOT / "policies"
FILES = sorted(POLICIES.glob("*.yaml"))


def load_files(*files: Path) -> LoadResult:
    """Load policy files as the command line does."""
    return load_policies([(str(file), file.read_text()) for file in files])


def test_the_whole_library_loads_together_without_an_error() -> None:
    loaded = load_files(*FILES)
    assert [str(error) for error in loaded.errors] == []
    assert loaded.policies is not None
    assert [policy.name for policy in loaded.policies.policies] == sorted(file.stem for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_policy_also_loads_alone(file: Path) -> None:
    assert load_files(file).errors == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_policy_has_a_test_file_that_names_it(file: Path) -> None:
    written = (POLICIES / "tests" / file.name).read_text()
    assert f"../{file.name}" in written


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_policy_has_a_section_in_the_documentation(file: Path) -> None:
    assert f"\n## {file.stem}\n" in (ROOT / "docs" / "policies.md").read_text()


def test_the_guard_leaves_out_the_namespaces_that_the_webhooks_leave_out() -> None:
    [guard] = load_files(POLICIES / "guard.yaml").policies.policies  # type: ignore[union-attr]  # it loads
    assert not [name for name in EXCLUDED_NAMESPACES if guard.match.namespace(name, {})]


def test_the_shipped_exception_loads_with_the_guard() -> None:
    loaded = load_files(POLICIES / "guard.yaml", ROOT / "examples" / "exceptions" / "nccl-debug.yaml")
    assert loaded.policies is not None
    assert [exemption.name for exemption in loaded.policies.exemptions] == ["nccl-debug"]


@pytest.mark.parametrize("file", sorted((POLICIES / "tests").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_policy_tests_pass(file: Path) -> None:
    result = run_test_file(str(file), datetime(2026, 6, 1, tzinfo=UTC))
    assert result.errors == ()
    assert {case.name: case.problems for case in result.cases if case.problems} == {}
