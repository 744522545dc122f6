"""Build the programs of a control plane, and Prometheus, once, and cache them.

    python -m tests.controlplane.build            # the version of KUBERNETES_VERSION, or the default
    python -m tests.controlplane.build 1.34.4

The cache is `$RIGHTSLICE_CACHE` (or `$XDG_CACHE_HOME/rightslice`, or `~/.cache/rightslice`), under
`controlplane/VERSION/bin`. Each program appears there whole or not at all, so an interrupted build continues where it
stopped. `KUBEBUILDER_ASSETS`, if set, is a folder whose programs are used instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane.build_cache import Say, alone, cache, tell
from tests.controlplane.definitions import OPERATORS, definitions
from tests.controlplane.errors import BuildError, ToolError
from tests.controlplane.programs import KUBERNETES, Program, plane, prometheus, versions
from tests.controlplane.toolchain import environment, find_go, go_line

LONGEST = 3600
"""Seconds until the build of one program is given up: a machine that needs longer hangs."""


def wanted_version() -> str:
    """Return the version of Kubernetes to test: KUBERNETES_VERSION, or the default.

    Raises:
        BuildError: that version cannot be built.
    """
    wanted = os.environ.get("KUBERNETES_VERSION", "").removeprefix("v") or KUBERNETES
    if wanted not in versions():
        raise BuildError(f"KUBERNETES_VERSION must be one of {', '.join(versions())}, found {wanted!r}.")
    return wanted


def control_plane(kubernetes: str, say: Say = tell) -> dict[str, Path]:
    """Return the programs of a control plane by name; missing ones are built first."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    given = {file.name: file for file in Path(assets).iterdir()} if assets else {}
    missing = [program for program in plane(kubernetes) if program.name not in given]
    return given | ensure(missing, cache() / "controlplane" / kubernetes / "bin", say)


def prometheus_program(say: Say = tell) -> Path:
    """Return the program of Prometheus; it is built first if it is missing."""
    program = prometheus()
    return ensure([program], cache() / "prometheus" / program.version / "bin", say)[program.name]


def ensure(programs: Sequence[Program], folder: Path, say: Say = tell) -> dict[str, Path]:
    """Return programs by name, in a folder; missing ones are built, by one caller at a time."""
    paths = {program.name: folder / program.name for program in programs}
    if not all(path.is_file() for path in paths.values()):
        with alone(folder.parent, say):
            folder.mkdir(exist_ok=True)
            _build([program for program in programs if not paths[program.name].is_file()], folder, say)
    return paths


def _build(programs: Sequence[Program], folder: Path, say: Say) -> None:
    if not programs:
        return
    go = find_go(max((go_line(program.module) for program in programs), key=_numbers), cache(), say)
    minutes = round(sum(program.seconds for program in programs) / 60) or 1
    say(f"Building what the tests of a real cluster run on, once: usually about {minutes} min on two cores.")
    say(f"It is kept in {folder}; `make test-fast` does without it.")
    for number, program in enumerate(programs, 1):
        say(f"[{number}/{len(programs)}] {program.name} {program.version}: usually {program.seconds} s")
        begin = time.monotonic()
        _build_one(program, folder, go)
        say(f"      done in {time.monotonic() - begin:.0f} s")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _build_one(program: Program, folder: Path, go: Path) -> None:
    linked = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in program.variables)])
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        made = Path(new) / program.name
        flags = ["-mod=readonly", "-trimpath", "-tags", ",".join(program.tags), "-ldflags", linked, "-o", str(made)]
        done = subprocess.run(
            [str(go), "build", *flags, program.package],
            cwd=program.module,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise ToolError(f"{program.name} {program.version} could not be built with {go}:\n{said}")
        made.rename(folder / program.name)


def main() -> int:
    """Build missing programs, and print their folder."""
    try:
        os.environ.update(zip(["KUBERNETES_VERSION"], sys.argv[1:], strict=False))
        control_plane(wanted_version())
        prometheus_program()
        for name in OPERATORS:
            definitions(name)
    except BuildError as error:
        tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
