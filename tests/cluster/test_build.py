"""Building a program with Go: once, atomically, and with instructions if it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.controlplane.build import ensure
from tests.controlplane.errors import ToolError
from tests.controlplane.programs import Program

GOOD = 'package main\n\nvar text = "nothing"\n\nfunc main() { println(text) }\n'
BAD = "package main\n\nfunc main() { undefined() }\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the programs."""
    return tmp_path / "1.0.0" / "bin"


def program(folder: Path, name: str = "small", source: str = GOOD) -> Program:
    """Return a program without dependencies, which builds in a second."""
    module = folder / "modules" / name / "1.0.0"
    module.mkdir(parents=True)
    (module / "go.mod").write_text(f"module example.com/{name}\n\ngo 1.24.0\n", encoding="utf-8")
    (module / "main.go").write_text(source, encoding="utf-8")
    return Program(name, module, f"example.com/{name}", 1, (("main.text", "something"),))


def test_a_built_program_runs_with_its_linker_values(tmp_path: Path, home: Path) -> None:
    messages: list[str] = []

    built = ensure([program(tmp_path)], home, messages.append)

    assert subprocess.run([built["small"]], capture_output=True, check=True).stderr == b"something\n"
    assert any(line.startswith("[1/1] small 1.0.0: usually 1 s") for line in messages)
    assert any(str(home) in line for line in messages)


def test_existing_programs_are_not_built_again(tmp_path: Path, home: Path) -> None:
    small = program(tmp_path)
    before = ensure([small], home, print)["small"].stat()
    messages: list[str] = []

    assert ensure([small], home, messages.append)["small"].stat() == before
    assert messages == []


def test_a_failed_build_resumes(tmp_path: Path, home: Path) -> None:
    small, faulty = program(tmp_path), program(tmp_path, "faulty", BAD)

    with pytest.raises(ToolError) as error:
        ensure([small, faulty], home, print)

    assert "faulty 1.0.0 could not be built with " in str(error.value)
    assert "undefined: undefined" in str(error.value)
    assert "`make test-fast`" in str(error.value)
    assert [file.name for file in home.iterdir()] == ["small"]
    assert sorted(file.name for file in home.parent.iterdir()) == ["bin", "lock"], "no partial build is left"

    (faulty.module / "main.go").write_text(GOOD, encoding="utf-8")
    messages: list[str] = []
    ensure([small, faulty], home, messages.append)
    assert [line for line in messages if line.startswith("[")] == ["[1/1] faulty 1.0.0: usually 1 s"]


BUILDER = """
import sys
from pathlib import Path
from tests.controlplane.build import ensure
from tests.controlplane.programs import Program
ensure([Program("small", Path(sys.argv[1]), "example.com/small", 1)], Path(sys.argv[2]))
"""


def test_concurrent_callers_build_once(tmp_path: Path, home: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(program(tmp_path).module), str(home)]
    builders = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]

    messages = [builder.communicate(timeout=300)[1] for builder in builders]

    assert [builder.returncode for builder in builders] == [0, 0], messages
    assert "".join(messages).count("[1/1] small 1.0.0") == 1
    assert (home / "small").is_file()
