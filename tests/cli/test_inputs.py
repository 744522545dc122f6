"""Notes about cluster policies that a command cannot evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from webhook.audit.cluster_reader import ClusterReader, PolicySources
from webhook.cache.policy_objects import PolicyObjects
from webhook.cli.inputs import load_cluster_policies, unused_policy_notes
from webhook.policy.loader import load_policies
from webhook.server.policy_sources import LastLoaded, combine_sources

EXCEPTION: dict[str, Any] = {
    "metadata": {"name": "e", "namespace": "ours", "generation": 2},
    "spec": {
        "policyName": "guard",
        "codes": ["GPU-S201"],
        "match": {"namespaces": ["team"]},
        "reason": "INC-1",
        "expirationTime": "2027-01-01T00:00:00Z",
    },
}
IN_USE = ["GPUPolicyException/ours/e is in use according to its status, but is not evaluated here"]
NOT_IN_USE = ["not in use as it is written"]
READY: dict[str, tuple[dict[str, object] | None, list[str]]] = {
    "a server uses it with a policy from a file": ({"status": "True", "observedGeneration": 2}, IN_USE),
    "a server used an earlier generation": ({"status": "True", "observedGeneration": 1}, NOT_IN_USE),
    "a server does not use it": ({"status": "False", "observedGeneration": 2}, NOT_IN_USE),
    "no server has reported its status": (None, NOT_IN_USE),
}


@pytest.mark.parametrize(("ready", "want"), READY.values(), ids=READY)
def test_an_exception_from_a_policy_that_is_not_known(ready: dict[str, object] | None, want: list[str]) -> None:
    objects = PolicyObjects()
    objects.exceptions.upsert({**EXCEPTION, "status": {"conditions": [{"type": "Ready", **ready}] if ready else []}})

    combined = combine_sources((), objects.texts(), LastLoaded(), load_policies)

    assert [note.partition(":")[0] for note in unused_policy_notes(combined.errors, objects.ready_names())] == want


def test_lint_reads_the_local_folder_first_and_names_it(
    rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = rightslice("policy", "lint")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.yaml").write_text("kind: GPUPolicy\n")
    local = rightslice("policy", "lint")

    assert (shipped.code, local.code) == (0, 1)
    assert local.out.startswith("policies/a.yaml:1:1  error")
    assert "policies/a.yaml: 1 error" in local.err


def test_errors_of_policies_as_json_have_file_line_and_field_apart(rightslice: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    head = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: a}\nspec:\n"
    file.write_text(head + "  mode: enforced\n  limit: {}\n")
    result = rightslice("policy", "lint", str(file), "-o", "json")
    found = json.loads(result.out)
    assert result.code == 1
    assert [(each["file"], each["line"], each["path"], each["code"]) for each in found] == [
        (str(file), 5, "spec.mode", "GPU-P103"),
        (str(file), 6, "spec.limit", "GPU-P102"),
    ]
    assert all(each["column"] and each["message"] for each in found)


def test_policies_without_errors_are_an_empty_list(rightslice: Run) -> None:
    result = rightslice("policy", "lint", "policies", "-o", "json")
    assert (result.code, json.loads(result.out)) == (0, [])


def test_a_policy_file_that_is_named_twice_is_read_once(
    rightslice: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once by its folder, once by itself, and once by a symlink."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies").mkdir()
    file = tmp_path / "policies" / "a.yaml"
    file.write_text("apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: a}\nspec: {}\n")
    (tmp_path / "link.yaml").symlink_to(file)

    result = rightslice("policy", "lint", "policies", str(file), "link.yaml")

    assert (result.code, result.err) == (0, "policies/a.yaml: no errors\n")


class PolicyReader(ClusterReader):
    """A cluster of which only the policies are known."""

    def __init__(self, *files: tuple[str, str]) -> None:
        self._sources = PolicySources(files, ())

    def policies(self, namespace: str) -> PolicySources:
        return self._sources


INVALID = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: a}\nspec: {mod: audit}\n"
NO_POLICIES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "there are none": ([], "note: this cluster has no policies, neither as objects nor in the ConfigMap"),
    "the only one is invalid": (
        [("configmap/a.yaml", INVALID)],
        "note: not in use as it is written: configmap/a.yaml:4:",
    ),
}


@pytest.mark.parametrize(("files", "start"), NO_POLICIES.values(), ids=NO_POLICIES)
def test_one_note_says_why_a_cluster_has_no_policies_in_use(files: list[tuple[str, str]], start: str) -> None:
    notes: list[str] = []
    assert load_cluster_policies(PolicyReader(*files), None, "", note=notes.append).policies == ()
    [note] = notes
    assert note.startswith(start)
