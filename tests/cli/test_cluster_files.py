"""-f: a cluster as several files, read as one snapshot by every command that takes a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import JUNE, Run
from tests.conftest import ROOT

SNAPSHOT = ROOT / "examples" / "cluster"
FILES = [word for file in sorted(SNAPSHOT.glob("*.yaml")) for word in ("-f", str(file))]
POLICIES = str(ROOT / "policies")

COMMANDS = {
    "capacity": ("capacity", "-o", "json"),
    "layout": ("layout", "--policies", POLICIES, "--now", JUNE, "-o", "jsonpath={.cardsUsed}"),
    "fairshare": ("fairshare", "--policies", POLICIES, "--now", JUNE, "-o", "json"),
    "policy diff": ("policy", "diff", POLICIES, "policies", "--now", JUNE, "-o", "json"),
    "kueue config": ("kueue", "config"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_files_are_the_cluster_of_their_folder(rightslice: Run, command: tuple[str, ...]) -> None:
    folder, files = rightslice(*command, "--cluster", str(SNAPSHOT)), rightslice(*command, *FILES)
    assert folder.code in (0, 1), folder.err
    assert (files.code, files.out) == (folder.code, folder.out)
    assert files.out
    assert "current context" not in files.err


@pytest.mark.parametrize("command", [*COMMANDS.values(), ("lint",)], ids=[*COMMANDS, "lint"])
def test_files_and_a_cluster_are_an_error(rightslice: Run, command: tuple[str, ...]) -> None:
    result = rightslice(*command, "--cluster", "demo", *FILES)
    assert (result.code, result.out) == (2, "")
    assert "error: --cluster: is the cluster to read, and so are the files; found both" in result.err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_broken_file_is_an_error_with_its_place(rightslice: Run, command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pods.yaml").write_text("kind: [Pod\n")
    result = rightslice(*command, *FILES, "-f", str(tmp_path / "pods.yaml"))
    assert result.code == 2
    assert f"{tmp_path / 'pods.yaml'}:2:1: " in result.err


def test_a_cluster_is_read_from_standard_input(rightslice: Run) -> None:
    nodes = (SNAPSHOT / "nodes-h100.yaml").read_bytes()
    from_file, piped = (
        rightslice("capacity", "-f", name, "-o", "name", stdin=nodes)
        for name in (str(SNAPSHOT / "nodes-h100.yaml"), "-")
    )
    assert from_file.out
    assert piped.out == from_file.out


def test_policies_are_named_as_files(rightslice: Run) -> None:
    assert rightslice("policy", "list", "-f", POLICIES, "-o", "name").out.count("gpupolicy.") > 5
    assert rightslice("policy", "show", "guard", "-f", POLICIES, "-o", "jsonpath={.metadata.name}").out == "guard"
