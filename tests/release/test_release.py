"""The files of a release: checksums, bill of materials, and what the workflows do."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.conftest import ROOT
from tests.release.__main__ import BILL, RUNTIME_BILL, build_packages, build_release
from tests.release.krew import MANIFEST, write_krew_files
from tests.release.lock_files import read_lock_file
from tests.release.publisher import EXAMPLES, name_repository, repository_address
from tests.release.runtime import LOCK, STATUS_FOLDER
from tests.release.sbom import bill_of_materials, read_system_packages

TIME = datetime(2026, 6, 1, tzinfo=UTC)
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((ROOT / ".github/workflows").glob("*.yml"))}
SCOPES, TYPES = {"required", "optional", "excluded"}, {"application", "library"}
"""Of the values that the schema of CycloneDX 1.6 allows, those that we use."""


def material(packages: Path = LOCK) -> dict[str, Any]:
    """Return the bill of materials of a lock file, after a round trip through JSON."""
    document = bill_of_materials("rightslice", "0.1.0", "Apache-2.0", read_lock_file(packages), TIME)
    decoded: dict[str, Any] = json.loads(json.dumps(document))
    return decoded


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_requirement_of_a_lock_is_read_with_its_hashes(lock: Path) -> None:
    packages = read_lock_file(lock)
    text = lock.read_text()

    assert [f"{each.name}=={each.version}" for each in packages] == [
        found.lower() for found in re.findall(r"^([A-Za-z0-9._-]+==[^ ;\\\n]+)", text, re.MULTILINE)
    ]
    assert sum(len(each.hashes) for each in packages) == text.count("--hash=sha256:")
    assert {parent for each in packages for parent in each.parents} <= {each.name for each in packages}


@pytest.mark.parametrize("text", ["aiohttp==3\n", "", "--index-url https://x\n"], ids=["no hash", "empty", "an option"])
def test_a_lock_that_was_not_written_by_make_lock_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock.txt").write_text(text)

    with pytest.raises(ValueError, match="must "):
        read_lock_file(tmp_path / "lock.txt")


def test_the_bill_of_materials_is_a_valid_document() -> None:
    document = material()

    assert document["bomFormat"] == "CycloneDX"
    assert document["specVersion"] == "1.6"
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", document["serialNumber"])
    assert isinstance(document["version"], int)
    assert datetime.fromisoformat(document["metadata"]["timestamp"]) == TIME
    assert document.keys() <= {
        "$schema", "bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"
    }  # fmt: skip
    for component in [document["metadata"]["component"], *document["components"]]:
        assert component["type"] in TYPES
        assert component["name"]
        assert component.get("scope", "required") in SCOPES
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        for reference in component.get("externalReferences", ()):
            assert reference["type"] == "distribution"
            assert all(re.fullmatch("[0-9a-f]{64}", each["content"]) for each in reference["hashes"])


def test_references_are_unique_and_dependencies_name_only_components() -> None:
    document = material()
    references = [document["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in document["components"])]

    assert len(set(references)) == len(references)
    assert sorted(each["ref"] for each in document["dependencies"]) == sorted(references)
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} == set(references[1:])


def test_the_bill_of_materials_has_every_package_of_the_image() -> None:
    locked = {(each.name, each.version) for each in read_lock_file(LOCK)}

    assert {(each["name"], each["version"]) for each in material()["components"]} == locked
    assert material() == material(), "equal inputs give equal documents"


def test_the_files_of_a_release_match_their_checksums_and_can_be_built_again(tmp_path: Path) -> None:
    *files, checksums = build_release(tmp_path / "dist", TIME, b"program")
    again = build_release(tmp_path / "again", TIME, b"program")[-1]

    assert checksums.read_text() == again.read_text()
    assert checksums.read_text() == "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )
    assert [file.name for file in files if file.suffix == ".whl"]
    assert json.loads((tmp_path / "dist" / "rightslice-0.1.0.cdx.json").read_text())["components"]


def test_a_file_that_lies_in_the_checkout_is_in_no_source_distribution(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"), symlinks=True)
    shutil.copyfile(ROOT / ".gitignore", copy / ".gitignore")
    for name in ("notes.txt", ".coverage.host.1", "secret/key.pem"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("mine")

    build_packages(tmp_path, TIME, "sdist", checkout=copy)

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        paths = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert not {path for path in paths if path.startswith((".coverage", "notes", "secret"))}
    assert paths >= {"pyproject.toml", "README.md", "LICENSE", "webhook/__init__.py", "tests/release/test_release.py"}


CONTROL = "Package: libstdc++6\nVersion: 1:12.2.0-14+deb12u1\nArchitecture: amd64\nDescription: library\n more\n"


def test_the_packages_of_debian_in_a_runtime_are_components_of_its_bill(tmp_path: Path) -> None:
    status = tmp_path / "tree" / STATUS_FOLDER
    status.mkdir(parents=True)
    (status / "libstdc++6").write_text(CONTROL)
    system = read_system_packages(tmp_path / "tree")
    vendor, release = system[0].distribution
    build_release(tmp_path / "dist", TIME, b"program", system)
    plain, full = (json.loads((tmp_path / "dist" / name).read_text()) for name in (BILL, RUNTIME_BILL))
    [added] = [each for each in full["components"] if each not in plain["components"]]

    assert added["purl"] == (
        f"pkg:deb/{vendor}/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch=amd64&distro={vendor}-{release}"
    )
    assert (added["name"], added["version"]) == ("libstdc++6", "1:12.2.0-14+deb12u1")
    assert added["purl"] in full["dependencies"][0]["dependsOn"]
    assert {"ref": added["purl"], "dependsOn": []} in full["dependencies"]


def test_one_setting_names_the_repository(tmp_path: Path) -> None:
    """A publisher changes it in pyproject.toml, and `make manifests` writes the examples."""
    write_krew_files(tmp_path, b"program", 0)
    manifest = yaml.safe_load((tmp_path / MANIFEST).read_text())
    texts = [(ROOT / name).read_text() for name in EXAMPLES]
    renamed = [name_repository(text, "https://github.com/acme/rightslice") for text in texts]

    assert manifest["spec"]["homepage"] == repository_address()
    assert [name_repository(text, repository_address()) for text in texts] == texts
    assert all("acme/rightslice" in text and "example/rightslice" not in text for text in renamed)
    assert "actions/checkout@v4" in renamed[2]
    assert "Repository =" in next(step["run"] for step in steps_of("release") if "Repository" in step.get("run", ""))


def test_the_icon_of_the_chart_is_that_of_the_tagged_checkout() -> None:
    chart = yaml.safe_load((ROOT / "charts/rightslice/Chart.yaml").read_text(encoding="utf-8"))
    repository, _, path = chart["icon"].partition(f"/v{chart['version']}/")

    assert repository == repository_address().replace("//github.com/", "//raw.githubusercontent.com/")
    assert ElementTree.parse(ROOT / path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def steps_of(workflow: str) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_named_by_commit_and_tokens_may_only_read_by_default(name: str) -> None:
    used = [step["uses"] for step in steps_of(name) if "uses" in step]

    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used)
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in WORKFLOWS[name]["jobs"].values())


@pytest.mark.parametrize("name", WORKFLOWS)
def test_scripts_of_workflows_are_valid_and_insert_no_untrusted_text(name: str) -> None:
    for step in (each for each in steps_of(name) if "run" in each):
        subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
        assert "${{" not in step["run"], "a value from outside reaches a script only as a variable"


def test_workflows_run_what_the_checkout_runs() -> None:
    for name in WORKFLOWS:
        commands = [step.get("run", "") for step in steps_of(name)]
        assert ".ci/run" in commands
        assert "make advisories ADVISORIES=all.zip" in commands


def test_the_release_is_signed_after_everything_passed_and_records_the_bases_of_the_image() -> None:
    scripts = [step["run"] for step in steps_of("release") if "run" in step]
    order = [scripts.index(next(each for each in scripts if part in each)) for part in (
        ".ci/run", "make release", "buildx build", "cosign sign-blob", "gh release create"
    )]  # fmt: skip

    assert order == sorted(order)
    build = scripts[order[2]]
    assert "--build-arg" not in build, "the bases are those of the Dockerfile"
    assert "Dockerfile > dist/bases.txt" in build
    assert "cosign sign --yes" in scripts[order[3]]
