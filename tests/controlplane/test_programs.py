"""The build plan: programs, sources, locations and messages, without building anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.controlplane import build
from tests.controlplane.build_cache import cache
from tests.controlplane.definitions import OPERATORS, PINNED, definitions, version_of
from tests.controlplane.errors import BuildError
from tests.controlplane.programs import (
    KUBERNETES,
    MODULES,
    Program,
    crane,
    helm,
    jobset,
    karpenter,
    krew,
    kueue,
    plane,
    prometheus,
    runc,
    trainer,
    umoci,
    versions,
)
from tests.controlplane.toolchain import release

PLANE_PROGRAMS = {"etcd", "kwok", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
PROGRAMS = [
    *(program for version in versions() for program in plane(version)),
    prometheus(),
    kueue(),
    jobset(),
    trainer(),
    karpenter(),
    helm(),
    krew(),
    runc(),
    umoci(),
    crane(),
]


def test_four_successive_minors_can_be_built_and_one_of_them_is_the_default() -> None:
    minors = sorted(release(version)[:2] for version in versions())

    assert minors == [(1, minor) for minor in range(34, 38)]
    assert KUBERNETES in versions()


@pytest.mark.parametrize("version", versions())
def test_a_plane_has_every_program(version: str) -> None:
    assert {program.name for program in plane(version)} == PLANE_PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.name} {program.version}")
def test_a_module_pins_its_version_and_every_module_below_it_by_hash(program: Program) -> None:
    go_mod = (program.module / "go.mod").read_text(encoding="utf-8")
    sums = (program.module / "go.sum").read_text(encoding="utf-8")
    (tools,) = re.findall(r"^tool (?:\((.*?)\)|(\S+))$", go_mod, re.MULTILINE | re.DOTALL)
    needed = set(re.findall(r"^\s+(\S+ v\S+)(?: // indirect)?$", go_mod.split("replace (")[0], re.MULTILINE))
    replaced = {name for name, _ in re.findall(r"^\s+(\S+) => \S+ (v\S+)$", go_mod, re.MULTILINE)}

    assert program.package in " ".join(tools).split()
    assert [need for need in needed if need.endswith(f" v{program.version}") and need.split()[0] in program.package]
    assert [need for need in needed if need not in sums and need.split()[0] not in replaced] == []


@pytest.mark.parametrize("version", versions())
def test_every_staging_module_of_kubernetes_is_of_the_same_release(version: str) -> None:
    text = (MODULES / "kubernetes" / version / "go.mod").read_text(encoding="utf-8")
    replaced = re.findall(r"^\s+(\S+) => (\S+) (\S+)$", text, re.MULTILINE)

    assert len(replaced) >= 29
    assert {(new, of) for _, new, of in replaced} == {(old, f"v0.{version[2:]}") for old, _, _ in replaced}


@pytest.mark.parametrize("name", OPERATORS)
def test_definitions_are_of_releases_with_a_known_hash(name: str) -> None:
    sums = (PINNED / "go.sum").read_text(encoding="utf-8").splitlines()
    module_release = f"{OPERATORS[name].module} {version_of(name)}"

    assert [line.rpartition(" ")[0] for line in sums if line.startswith(module_release)] == [
        module_release,
        f"{module_release}/go.mod",
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_cached_definitions_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    cached = tmp_path / "crds" / f"{name}-{version_of(name)}"
    cached.mkdir(parents=True)
    monkeypatch.setenv("RIGHTSLICE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # so that Go is not found
    messages: list[str] = []

    assert definitions(name, messages.append) == cached
    assert messages == []


CACHE_FOLDERS = {
    "set by a variable": ({"RIGHTSLICE_CACHE": "/given", "XDG_CACHE_HOME": "/caches"}, "/given"),
    "the cache folder of the user": ({"XDG_CACHE_HOME": "/caches"}, "/caches/rightslice"),
    "the default cache folder": ({"HOME": "/people/ana"}, "/people/ana/.cache/rightslice"),
}


@pytest.mark.parametrize(("environment", "folder"), CACHE_FOLDERS.values(), ids=CACHE_FOLDERS)
def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str) -> None:
    for name in ("RIGHTSLICE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert cache() == Path(folder)


@pytest.mark.parametrize("written", ["1.34.4", "v1.34.4"])
def test_a_variable_selects_another_version(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("KUBERNETES_VERSION", written)

    assert build.wanted_version() == "1.34.4"


def test_an_unknown_version_is_rejected_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_VERSION", "1.12")

    with pytest.raises(BuildError) as error:
        build.wanted_version()

    assert str(error.value) == f"KUBERNETES_VERSION must be one of {', '.join(versions())}, found '1.12'."


def test_existing_programs_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """KUBEBUILDER_ASSETS comes first; programs that it lacks come from the cache."""
    assets, cached = tmp_path / "assets", tmp_path / "cache" / "controlplane" / KUBERNETES / "bin"
    in_assets = {"etcd", "kube-apiserver", "kubectl"}
    for folder, names in ((assets, in_assets), (cached, PLANE_PROGRAMS)):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("RIGHTSLICE_CACHE", str(tmp_path / "cache"))
    messages: list[str] = []

    found = build.control_plane(KUBERNETES, messages.append)

    assert found == {name: (assets if name in in_assets else cached) / name for name in PLANE_PROGRAMS}
    assert messages == []


RELEASES = {"go1.26.8": (1, 26, 8), "go1.26rc1": (1, 26), "go1.27.0 X:nocoverageredesign": (1, 27, 0), "": ()}


@pytest.mark.parametrize(("text", "numbers"), RELEASES.items())
def test_releases_of_go_are_compared_by_number(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers
