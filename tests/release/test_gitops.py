"""The GitHub Action and the pre-commit hooks, over the example repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.cluster.polling import COMMAND_SECONDS
from tests.conftest import ROOT
from tests.release.publisher import repository_address

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
INSTALL, *STEPS = ACTION["runs"]["steps"]
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
"""How GitHub starts the shell of a step."""


class StepResult(NamedTuple):
    """The exit code of a command, and its output."""

    code: int
    out: str


class Runner:
    """A machine that runs the steps of the action, with a `rightslice` that is this checkout's.

    Attributes:
        repository: The working directory: a copy of the example repository.
    """

    def __init__(self, folder: Path, action: Path = ROOT) -> None:
        self.repository = Path(shutil.copytree(ROOT / "examples" / "gitops", folder / "gitops"))
        self._folder, self._paths = folder, folder / "github-path"
        self._paths.touch()
        self._contexts = {"github.action_path": str(action), "runner.temp": str(folder)}

    def add_checkout(self) -> None:
        """Add the checkout's `rightslice` to the PATH, as the first step does."""
        program = self._folder / "bin" / "rightslice"
        program.parent.mkdir()
        call = f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m webhook.cli "$@"'
        program.write_text(f"#!/bin/sh\n{call}\n")
        program.chmod(0o755)
        self._paths.write_text(f"{program.parent}\n")

    def run_steps(self, steps: list[dict[str, Any]], **inputs: str) -> list[StepResult]:
        """Run the steps whose condition holds, whatever the result of those before."""
        defaults = {name: each["default"] for name, each in ACTION["inputs"].items()}
        values = self._contexts | {f"inputs.{name}": value for name, value in (defaults | inputs).items()}
        return [self._run_step(step, values) for step in steps if applies(step, values)]

    def run_hook(self, name: str) -> StepResult:
        """Run a hook, which gets the manifests unless it takes no file names."""
        files = ["deploy/train.yaml"] if HOOKS[name].get("pass_filenames", True) else []
        return self.run(shlex.join([*shlex.split(HOOKS[name]["entry"]), *files]))

    def _run_step(self, step: dict[str, Any], values: dict[str, str]) -> StepResult:
        assert step["shell"] == "bash"
        return self.run(step["run"], **{name: expand(text, values) for name, text in step["env"].items()})

    def run(self, command: str, **env: str) -> StepResult:
        """Run a command in the repository."""
        script = self._folder / "script.sh"
        script.write_text(command)
        path = os.pathsep.join([*reversed(self._paths.read_text().split()), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "HOME"}
        variables = {**kept, "PATH": path, "GITHUB_PATH": str(self._paths), **env}
        done = subprocess.run(
            [*BASH, str(script)],
            cwd=self.repository,
            env=variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return StepResult(done.returncode, done.stdout + done.stderr)


def expand(text: str, values: dict[str, str]) -> str:
    """Replace the expressions of a text, each of which is one value."""
    return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text)


def applies(step: dict[str, Any], values: dict[str, str]) -> bool:
    """Return whether the condition of a step holds: that a value is not empty."""
    if "if" not in step:
        return True
    found = re.fullmatch(r"([\w.]+) != ''", step["if"])
    assert found, f"unknown condition: {step['if']}"
    return values[found[1]] != ""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner on which the first step has run."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    found = Runner(tmp_path)
    found.add_checkout()
    return found


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text that the file has."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def codes(results: list[StepResult]) -> list[int]:
    """Return the exit codes."""
    return [each.code for each in results]


def test_the_example_passes_the_action_and_both_hooks(runner: Runner) -> None:
    assert codes(runner.run_steps(STEPS)) == [0, 0]
    assert codes([runner.run_hook(name) for name in HOOKS]) == [0, 0]


def test_a_manifest_that_a_policy_denies_fails_the_check(runner: Runner) -> None:
    replace(runner.repository / "deploy" / "train.yaml", "nvidia.com/gpu: 2", "nvidia.com/gpu: 3")
    check, test = runner.run_steps(STEPS)

    assert (check.code, test.code, runner.run_hook("rightslice-check").code) == (1, 0, 1)
    assert "::error file=deploy/train.yaml,line=" in check.out


def test_a_policy_that_allows_too_much_fails_its_test(runner: Runner) -> None:
    replace(runner.repository / "policies" / "gpus-per-pod.yaml", "[1, 2, 4, 8]", "[1, 2, 3, 4, 8]")
    assert codes(runner.run_steps(STEPS)) == [0, 1]
    assert runner.run_hook("rightslice-test").code == 1


def test_inputs_name_other_folders_and_no_tests(runner: Runner) -> None:
    (runner.repository / "deploy").rename(runner.repository / "apps")

    assert codes(runner.run_steps(STEPS, manifests="apps", tests="")) == [0]
    missing, test = runner.run_steps(STEPS)

    assert (missing.code, test.code) == (2, 0)
    assert "::error title=Rightslice::deploy: must be a file or folder of manifests, found none." in missing.out


@pytest.mark.parametrize("others", [[], ["kyverno.yaml"]], ids=["no folder", "a folder of other policies"])
def test_a_repository_without_policy_tests_passes_with_a_warning(runner: Runner, others: list[str]) -> None:
    shutil.rmtree(runner.repository / "policies")
    (runner.repository / ".rightslice.yaml").unlink()
    for name in others:
        (runner.repository / "policies").mkdir()
        (runner.repository / "policies" / name).write_text("kind: ClusterPolicy\n")
    check, test = runner.run_steps(STEPS)

    assert (check.code, test.code) == (0, 0)
    assert "::warning file=policies,title=no-tests::must contain policy tests, found none." in test.out


def test_policies_that_the_repository_configures_have_their_tests_run(runner: Runner) -> None:
    (runner.repository / "policies").rename(runner.repository / "rules")
    replace(runner.repository / ".rightslice.yaml", "policies: [policies]", "policies: [rules]")
    replace(runner.repository / "rules" / "gpus-per-pod.yaml", "[1, 2, 4, 8]", "[1, 2, 3, 4, 8]")
    assert codes(runner.run_steps(STEPS)) == [0, 1]


def test_a_missing_folder_that_the_repository_configures_fails(runner: Runner) -> None:
    replace(runner.repository / ".rightslice.yaml", "policies: [policies]", "policies: [missing]")
    assert codes(runner.run_steps(STEPS)) == [2, 2]


@pytest.mark.parametrize("tests", ["deploy", "policies", "missing"])
def test_a_named_folder_without_policy_tests_fails(runner: Runner, tests: str) -> None:
    shutil.rmtree(runner.repository / "policies" / "tests")
    test = runner.run_steps(STEPS, tests=tests)[-1]
    assert test.code == 2
    assert f"error: {tests}: " in test.out


CONFIG = yaml.safe_load((ROOT / "examples/gitops/.pre-commit-config.yaml").read_text())["repos"][0]


def test_the_example_uses_hooks_that_exist() -> None:
    assert {hook["id"] for hook in CONFIG["hooks"]} == set(HOOKS)


@pytest.fixture(scope="module")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip tests of installations where pip can fetch no packages."""
    folder = str(tmp_path_factory.mktemp("download"))
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "--dest", folder]
    done = subprocess.run([*download, "typer"], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        pytest.skip("needs the package index that pip is configured for, which does not answer")


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder."""
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this checkout, and the tag that the example names."""
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "dist", "tests", "docs")
    folder = Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("published") / "rightslice", ignore=ignored))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=Release")
    git(folder, "tag", CONFIG["rev"])
    return folder


@pytest.mark.usefixtures("package_index")
def test_the_action_installs_what_it_runs(published: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path, published)
    results = runner.run_steps([INSTALL, *STEPS])

    assert codes(results) == [0, 0, 0], results
    assert runner.run("command -v rightslice").out == f"{tmp_path}/rightslice/bin/rightslice\n"


@pytest.mark.usefixtures("package_index")
def test_pre_commit_installs_and_runs_the_hooks_of_the_example(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git reads our repository instead of the address that the example names."""
    repository = Runner(tmp_path).repository
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    instead = {"COUNT": "1", "KEY_0": f"url.{published.as_uri()}.insteadOf", "VALUE_0": repository_address()}
    variables = {f"GIT_CONFIG_{name}": value for name, value in instead.items()}
    for name, value in {**variables, "PRE_COMMIT_HOME": str(tmp_path / "hooks")}.items():
        monkeypatch.setenv(name, value)

    def run_hooks() -> StepResult:
        command = [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never"]
        done = subprocess.run(
            command, cwd=repository, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        return StepResult(done.returncode, done.stdout + done.stderr)

    passed = run_hooks()
    replace(repository / "deploy" / "train.yaml", "nvidia.com/gpu: 2", "nvidia.com/gpu: 3")
    failed = run_hooks()

    assert passed.code == 0, passed.out
    assert passed.out.count("Passed") == len(HOOKS)
    assert failed.code == 1
    assert "GPU-L102" in failed.out
