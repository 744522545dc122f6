"""Objects of files with their positions, and reasons for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from webhook.audit.object_files import SkippedDocument, SourceObject, document_files, parse_objects, read_objects

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
SKIPPED = {
    "an empty file": ("", "an empty file", False),
    "comments only": ("# nothing\n---\n# here\n", "an empty file", False),
    "text": ("hello", "must be a map", False),
    "a list": ("[1, 2]", "must be a map", False),
    "Helm values": ("replicas: 2", "no apiVersion and no kind", False),
    "a kind that is not text": ("apiVersion: v1\nkind: 2", "no kind", False),
    "a Helm template": ("kind: Pod\nmetadata:\n  name: {{ .Name }}\n", "helm template", False),
    "a kustomization": ("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization", "kustomize build", False),
    "a tab": ("kind: Pod\nmetadata:\n\tname: a", "tab", True),
    "an open bracket": ("kind: [Pod", "must", True),
    "UTF-16": ("kind: Pod".encode("utf-16"), "UTF-8", True),
    "a key twice": ("kind: Pod\nkind: Pod", "once", True),
    "deep nesting": ("a: " + "[" * 10_000, "levels deep", True),
    "an alias bomb": (
        "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9)),
        "aliases",
        True,
    ),
    "an invalid item of a List": ("apiVersion: v1\nkind: List\nitems: [1]", "must be a map", False),
}


@pytest.mark.parametrize(("text", "reason", "broken"), SKIPPED.values(), ids=SKIPPED)
def test_document_that_is_not_an_object_has_a_reason(text: str | bytes, reason: str, broken: bool) -> None:
    [found] = parse_objects("f.yaml", text if isinstance(text, bytes) else text.encode())
    assert isinstance(found, SkippedDocument)
    assert reason in found.reason
    assert found.invalid is broken


def entries(text: str) -> list[SourceObject]:
    found = list(parse_objects("f.yaml", text.encode()))
    assert all(isinstance(each, SourceObject) for each in found)
    return [each for each in found if isinstance(each, SourceObject)]


def test_each_document_is_an_object() -> None:
    assert [each.locate().line for each in entries(f"{POD}---\n---\n{POD}")] == [1, 6]


INVALID_DOCUMENTS = {
    "a tab": "kind: Pod\n\tname: b\n",
    "a key twice": "kind: Pod\nkind: Pod\n",
    "a template": "name: {{ .Name }}\n",
}


@pytest.mark.parametrize("invalid", INVALID_DOCUMENTS.values(), ids=INVALID_DOCUMENTS)
def test_invalid_document_does_not_affect_the_others(invalid: str) -> None:
    first, second, faulty, last = parse_objects("f.yaml", f"{POD}---\n{POD}---\n{invalid}---\n{POD}".encode())

    assert [type(each) for each in (first, second, last)] == [SourceObject, SourceObject, SourceObject]
    assert isinstance(faulty, SkippedDocument)
    assert faulty.location.line in (9, 10)


def test_items_of_a_list_have_their_own_positions() -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n"
    [found] = entries(text)
    assert str(found.locate()) == "f.yaml:4:3"
    assert str(found.locate(("metadata", "name"))) == "f.yaml:7:11"
    assert str(found.locate(("spec", "containers", 0))) == "f.yaml:4:3", "the nearest parent that is written"


def test_items_of_a_typed_list_get_its_kind() -> None:
    found = entries("apiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: a}}, {kind: Other}]")
    assert [(each.data["apiVersion"], each.data["kind"]) for each in found] == [
        ("apps/v1", "Deployment"),
        ("apps/v1", "Other"),
    ]


def test_nested_lists_are_expanded() -> None:
    inner = '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}]}'
    assert [each.prefix for each in entries(f'{{"apiVersion": "v1", "kind": "List", "items": [{inner}]}}')] == [
        ("items", 0, "items", 0)
    ]


def test_json_has_positions_too() -> None:
    [found] = entries('{"apiVersion": "v1", "kind": "Pod",\n "metadata": {"name": "a"}}')
    assert str(found.locate(("metadata", "name"))) == "f.yaml:2:23"


def test_folder_without_manifests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(POD)
    [found] = read_objects([str(tmp_path)])
    assert isinstance(found, SkippedDocument)
    assert found.invalid
    assert found.reason.startswith("a folder without YAML or JSON files")


def test_manifests_of_a_folder_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/z.yml", "a/y.json", "c.txt", ".git/x.yaml", "a/.hidden.yaml"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(POD)
    found = [str(Path(file).relative_to(tmp_path)) for file in document_files(str(tmp_path))]
    assert found == ["a/y.json", "a/z.yml", "b.yaml"]
    assert len(list(read_objects([str(tmp_path), str(tmp_path / "c.txt")]))) == 4, "a file that is named is read"


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    [found] = read_objects([str(tmp_path / "nowhere.yaml")])
    assert isinstance(found, SkippedDocument)
    assert found.invalid
    assert "cannot be read" in found.reason
