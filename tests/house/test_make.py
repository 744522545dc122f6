"""`make` works as the README says, and `make test` runs every check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.house.checkout import ROOT, pages, project, read_checkout_file

CHECKS = ["ruff check", "ruff format --check", "mypy", "lint-imports", "python -m pytest"]


def call_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make without the environment of an outer make."""
    own = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "GNUMAKEFLAGS", "VENV", "PYTHON"}
    environment = {key: value for key, value in os.environ.items() if key not in own}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def make(*arguments: str) -> str:
    """Run make, which must succeed, and return its output."""
    done = call_make(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def targets() -> set[str]:
    """Return the public targets."""
    return set(re.findall(r"^\.PHONY: (.*)$", read_checkout_file("Makefile"), re.MULTILINE)[0].split())


def test_make_without_arguments_lists_every_target_with_its_purpose() -> None:
    listed = re.findall(r"^make ([a-z-]+) +\S", make(), re.MULTILINE)

    assert set(listed) == targets()


def test_every_make_command_in_a_page_exists() -> None:
    named = {name for page in pages() for name in re.findall(r"(?:`|^|\$ )make ([a-z-]+)", page.read_text(), re.M)}

    assert {"run", "test"} <= named
    assert named - targets() == set()


def test_make_test_checks_style_types_and_imports_and_runs_the_tests_last() -> None:
    commands = [line.split("/bin/", 1)[1] for line in make("--dry-run", "test").splitlines() if "/bin/" in line]
    checks = [command for command in commands if command.startswith(tuple(CHECKS))]

    assert [check.startswith(name) for check, name in zip(checks, CHECKS, strict=True)] == [True] * len(CHECKS)
    assert commands[-1] == checks[-1]


def test_coverage_is_required_of_the_packages_that_cannot_do_io() -> None:
    contracts = project()["tool"]["importlinter"]["contracts"]
    (pure,) = [contract for contract in contracts if contract["name"].startswith("The core cannot do I/O")]
    measured = re.findall(r"--cov=(\S+)", make("--dry-run", "test"))

    assert sorted(name.replace("/", ".") for name in measured) == sorted(pure["source_modules"])
    assert "--cov-branch" in make("--dry-run", "test")
    assert "--cov-fail-under=95" in make("--dry-run", "test")


def test_every_install_takes_wheels_by_hash_or_the_checkout_itself() -> None:
    printed = make("--dry-run", "--always-make", "test", "run", "docs")
    installs = [line for line in printed.splitlines() if "pip install" in line]

    assert len(installs) == 5
    for line in installs:
        assert "--no-deps --require-hashes --only-binary :all:" in line or "--no-deps --no-index" in line, line


def test_the_console_of_make_ui_can_plan_layouts() -> None:
    [lock] = re.findall(r"--requirement (\S+)", make("--dry-run", "--always-make", "ui"))[:1]

    assert re.search("^highspy==", read_checkout_file(lock), re.MULTILINE)


def test_the_locked_packages_have_all_that_they_require() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_an_old_python_is_rejected_with_instructions(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)

    done = call_make("run", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")

    assert done.returncode != 0
    assert "needs Python 3.11 or newer, found: Python 3.9.2. Name another one: make PYTHON=" in done.stderr


def test_continuous_integration_only_calls_make_test() -> None:
    lines = [
        line
        for line in read_checkout_file(".ci/run").splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]

    assert lines == ["make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_a_commit_runs_the_checks_of_make_lint() -> None:
    hooks = read_checkout_file(".pre-commit-config.yaml")

    for tool in ("ruff check", "ruff format", "mypy", "lint-imports"):
        assert f"entry: .venv/bin/{tool}" in hooks
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
