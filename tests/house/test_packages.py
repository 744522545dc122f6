"""The wheel with its policies and examples, and the container image."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, files, project, read_checkout_file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """Build the wheel of this checkout, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return zipfile.Path(made)


def inside(wheel: zipfile.Path) -> set[str]:
    """Return the names of all files in the wheel."""
    return set(wheel.root.namelist())


@pytest.mark.parametrize("folder", ["policies", "examples", "manifests"])
def test_the_wheel_contains_the_bundled_files(wheel: zipfile.Path, folder: str) -> None:
    written = {str(file.relative_to(ROOT)) for file in files(ROOT / folder)}

    assert written
    assert {f"webhook/shipped/{name}" for name in written} <= inside(wheel)


def test_the_wheel_contains_the_package_with_its_types_and_nothing_else(wheel: zipfile.Path) -> None:
    written = {str(file.relative_to(ROOT)) for file in files(ROOT / "webhook")}

    assert written <= inside(wheel)
    assert "webhook/py.typed" in written
    assert {name.split("/")[0].removesuffix(".dist-info") for name in inside(wheel)} == {"webhook", wheel_name()}


def test_the_wheel_has_both_commands_and_the_license(wheel: zipfile.Path) -> None:
    about = wheel / f"{wheel_name()}.dist-info"

    commands = (about / "entry_points.txt").read_text()
    assert "rightslice = " in commands
    assert "kubectl-rightslice = " in commands
    assert "Apache License" in (about / "licenses" / "LICENSE").read_text()


def test_the_wheel_works_outside_the_checkout(wheel: zipfile.Path, tmp_path: Path) -> None:
    names = [name for name in wheel.root.namelist() if not name.endswith("/")]  # Python 3.11.2 lists implied folders
    wheel.root.extractall(tmp_path, names)
    pods = tmp_path / "webhook" / "shipped" / "examples" / "pods"
    command = [sys.executable, "-m", "webhook.cli", "check", str(pods), "--cluster", "demo"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert "(guard, " in done.stdout
    assert str(ROOT) not in done.stdout


def wheel_name() -> str:
    """Return name and version as in the file names of a wheel."""
    return f"{project()['project']['name']}-{project()['project']['version']}"


def test_the_image_installs_only_wheels_with_known_hashes() -> None:
    installs = re.findall(r"install ((?:[^\n]*\\\n)*[^\n]*)", read_checkout_file("Dockerfile"))

    assert len(installs) == 3
    for line in installs:
        assert "--no-deps --require-hashes --only-binary :all:" in line or "--no-index --no-deps" in line, line


def test_the_image_is_built_from_bases_pinned_by_digest() -> None:
    dockerfile = read_checkout_file("Dockerfile")
    bases = dict(re.findall(r"^ARG (\w+)=(\S+)$", dockerfile, re.MULTILINE))

    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) == ["${BUILD}", "${RUN}"]
    assert {name: base.partition("@")[0] for name, base in bases.items()} == {
        "BUILD": "docker.io/library/python:3.11-slim-bookworm",
        "RUN": "gcr.io/distroless/python3-debian12:nonroot",
    }
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", base.partition("@")[2]) for base in bases.values())


def test_the_image_runs_as_a_numbered_user_and_starts_no_shell() -> None:
    last_stage = read_checkout_file("Dockerfile").rsplit("\nFROM ", 1)[1]

    assert re.findall(r"^USER (\d+):(\d+)$", last_stage, re.MULTILINE) == [("65532", "65532")]
    assert 'ENTRYPOINT ["/usr/bin/python3", "-m", "webhook.cli"]' in last_stage
    assert "distroless" in read_checkout_file("Dockerfile").rpartition("ARG RUN=")[2].splitlines()[0]
    assert "\nRUN " not in last_stage


def test_the_build_context_contains_everything_the_image_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", read_checkout_file("Dockerfile"), re.MULTILINE)
    names = {Path(name).parts[0] for line in copied for name in line.split()}

    assert names == {line[1:] for line in read_checkout_file(".dockerignore").splitlines() if line.startswith("!")}
    assert "*" in read_checkout_file(".dockerignore").splitlines()
