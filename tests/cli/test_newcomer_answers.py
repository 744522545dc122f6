"""Answers that a new user misread: invalid values of flags, files without what a command reads, and denied pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.conftest import ROOT
from webhook.manifests.objects import is_image_reference

GPU_POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: bypass, namespace: team-a}
spec:
  containers:
    - name: main
      image: cuda
      env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""
INVALID_VALUES = {
    "a choice": (
        ("check", "-", "--fail-on", "bad"),
        "error: --fail-on: must be one of deny, warn, skipped, never, found 'bad'",
    ),
    "a strategy": (
        ("place", "-f", "-", "--strategy", "best"),
        "error: --strategy: must be one of tab, fgd, most-allocated, default, found 'best'",
    ),
    "a number": (
        ("simulate", "--nodes", "demo", "--pods", "-", "--seed", "many"),
        "error: --seed: must be a valid integer, found 'many'",
    ),
    "a namespace that cannot exist": (("check", "-", "-n", "a/b"), "error: --namespace: must be a namespace name"),
    "an image that cannot be pulled": (
        ("install", "--image", "bad image", "-o", "yaml"),
        "error: --image: must be an image reference, found 'bad image'. Write registry.example.com/rightslice:0.1.0",
    ),
    "a switch with a word": (
        ("check", "-", "--no-headers=maybe"),
        "error: --no-headers: must have no value, or =true or =false, found another. Write --no-headers",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), INVALID_VALUES.values(), ids=INVALID_VALUES)
def test_an_invalid_value_is_named_with_what_must_hold(
    rightslice: Run, arguments: tuple[str, ...], message: str
) -> None:
    run = rightslice(*arguments, stdin=GPU_POD)
    assert run.code == 2
    assert message in run.err
    assert "Value error" not in run.err


@pytest.mark.parametrize(("written", "meant"), [("=true", ["--no-headers"]), ("=false", [])])
def test_a_switch_may_have_a_value_as_for_kubectl(rightslice: Run, written: str, meant: list[str]) -> None:
    command = ("check", "-", "-o=wide")
    found, want = (rightslice(*command, *flags, stdin=GPU_POD) for flags in ([f"--no-headers{written}"], meant))
    assert found.out == want.out != ""


def test_a_switch_with_a_letter_may_have_a_value(rightslice: Run) -> None:
    assert rightslice("audit", "--cluster=demo", "-A=true", "-n", "none", "-o=name").out.startswith("deployment")


def test_check_says_that_a_selector_selects_nothing(rightslice: Run) -> None:
    run = rightslice("check", "-", "-l", "app=", stdin=GPU_POD)
    assert "note: none of 1 object with labels app=" in run.err.splitlines()


UNREAD = {
    "check of a missing file": (("check", "none.yaml"), "error: none.yaml: cannot be read: No such file or directory"),
    "explain of a missing file": (
        ("explain", "-f", "none.yaml"),
        "error: none.yaml: cannot be read: No such file or directory",
    ),
    "a missing file of usage": (
        ("audit", "--cluster", "demo", "--usage", "none.json"),
        "error: --usage none.json: cannot be read: No such file or directory",
    ),
    "check of invalid YAML": (("check", "{broken}"), "error: {broken}:2:1: "),
    "test of invalid YAML": (("test", "{broken}"), "error: {broken}:2:1: "),
}
"""Commands that can read nothing, and the error."""


@pytest.mark.parametrize(("command", "error"), UNREAD.values(), ids=UNREAD)
def test_what_cannot_be_read_is_an_error_in_one_style(
    rightslice: Run, tmp_path: Path, command: tuple[str, ...], error: str
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [\n")
    run = rightslice(*(each.format(broken=broken) for each in command))
    assert (run.code, run.out) == (2, "")
    [line] = run.err.splitlines()
    assert line.startswith(error.format(broken=broken))


SHIPPED = {
    "a file": (
        "policies/right-sizing.yaml",
        "To save the shipped policy, write rightslice policy show right-sizing > right-sizing.yaml, and name that file",
    ),
    "the folder": ("policies", "Without --policies, the shipped policies are read"),
}
"""Paths of shipped policies that only a checkout has, and what to write elsewhere."""


@pytest.mark.parametrize(("path", "hint"), SHIPPED.values(), ids=SHIPPED)
def test_outside_of_a_checkout_a_shipped_policy_is_got_from_the_command(
    rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = rightslice("check", "-", "--policies", path, stdin=GPU_POD)
    assert run.err == f"error: {path}: cannot be read: No such file or directory. {hint}\n"


def test_a_shipped_policy_that_was_saved_decides_as_the_shipped_one(rightslice: Run, tmp_path: Path) -> None:
    saved = tmp_path / "guard.yaml"
    saved.write_text(rightslice("policy", "show", "guard").out)
    flags = ("--cluster", "demo", "-o", "json", "--policies")
    pods = sorted(map(str, (ROOT / "examples/pods").glob("*.yaml")))
    files = (saved, ROOT / "policies/guard.yaml")
    found, wanted = (json.loads(rightslice("check", *pods, *flags, str(file)).out) for file in files)
    assert [each["verdict"] for each in found["objects"]] == [each["verdict"] for each in wanted["objects"]]
    assert found["summary"]["denied"] > 0


def test_a_file_that_cannot_be_read_is_a_finding_for_machines(rightslice: Run) -> None:
    run = rightslice("check", "none.yaml", "-o", "json")
    assert run.code == 2
    assert "cannot be read" in run.out


UNREAD_BESIDE_OTHERS = {
    "names of checked objects": ("check", "deploy/train.yaml", "none.yaml", "-o", "name"),
    "names of audited workloads": ("audit", "cluster.yaml", "none.yaml", "-o", "name"),
    "rows without a header": ("audit", "cluster.yaml", "none.yaml", "--no-headers"),
    "a spreadsheet": ("audit", "cluster.yaml", "none.yaml", "-o", "csv"),
    "metrics": ("audit", "cluster.yaml", "none.yaml", "-o", "metrics"),
}


@pytest.mark.parametrize("arguments", UNREAD_BESIDE_OTHERS.values(), ids=UNREAD_BESIDE_OTHERS)
def test_a_report_that_does_not_show_an_unread_file_is_followed_by_the_error(
    rightslice: Run, arguments: tuple[str, ...]
) -> None:
    run = rightslice(*arguments, "--policies", "policies")
    assert run.code == 2
    assert run.out
    assert "error: none.yaml: cannot be read: No such file or directory\n" in run.err


URLS = {
    "objects": ("check", "-f", "https://example.com/pod.yaml"),
    "policies": ("check", "deploy/train.yaml", "--policies", "https://example.com/policy.yaml"),
    "a cluster": ("capacity", "http://example.com/cluster.yaml"),
}


@pytest.mark.parametrize("arguments", URLS.values(), ids=URLS)
def test_a_url_is_not_called_a_missing_file(rightslice: Run, arguments: tuple[str, ...]) -> None:
    run = rightslice(*arguments)
    assert run.code == 2
    assert "must be a file or folder, found a URL. Download it first: curl -fsSLO URL" in run.err


IMAGES = {
    "rightslice": True,
    "rightslice:0.1.0": True,
    "localhost:5000/rightslice": True,
    "[::1]:5000/rightslice:1": True,
    "Registry.example.com/team/right__slice-x:v1_a.b": True,
    f"registry.example.com/rightslice:1@sha256:{'0a' * 32}": True,
    "bad image": False,
    "rightslice:": False,
    "Team/rightslice/": False,
    "registry.example.com/Rightslice": False,
    "rightslice@sha256:abc": False,
    "https://registry.example.com/rightslice": False,
    "rightslice\n": False,
}
"""Names of images, and whether container runtimes accept them."""


@pytest.mark.parametrize(("image", "valid"), IMAGES.items())
def test_an_image_reference_is_valid_if_runtimes_parse_it(image: str, valid: bool) -> None:
    assert is_image_reference(image) is valid


def test_the_message_of_a_denied_pod_is_the_denial(rightslice: Run) -> None:
    head, pod = rightslice("check", "-", "--cluster", "demo", "-o", "wide", stdin=GPU_POD).out.splitlines()[:2]
    assert pod.startswith("denied")
    assert pod[head.index("MESSAGE") :].startswith("NVIDIA_VISIBLE_DEVICES must be void, none or absent")


def test_lint_names_the_kinds_that_it_does_not_check(rightslice: Run) -> None:
    run = rightslice("lint", "-f", "-", stdin=GPU_POD)
    assert run.err.splitlines() == [
        "0 objects: no findings",
        "note: not checked: Pod. lint checks LimitRange, ResourceQuota",
    ]


@pytest.mark.parametrize("form", ["text", "name", "json"])
def test_lint_of_a_missing_file_prints_the_error_of_all_commands(rightslice: Run, form: str) -> None:
    run = rightslice("lint", "none.yaml", "traps.yaml", "-o", form)
    assert run.code == 2
    assert "error: none.yaml: cannot be read: No such file or directory" in run.err.splitlines()


def test_simulate_counts_denied_pods_apart_from_unschedulable_ones(rightslice: Run) -> None:
    table = rightslice("simulate", "--nodes", "demo", "--pods", "-", stdin=GPU_POD).out
    assert "0 pods placed, 1 denied, 0 unschedulable;" in table
    document = json.loads(rightslice("simulate", "--nodes", "demo", "--pods", "-", "-o", "json", stdin=GPU_POD).out)
    assert (document["denied"], document["steps"][-1]["unplaced"]) == (1, 1)
