"""Build the programs of a control plane, and Prometheus, once, and keep them.

    python -m tests.controlplane.build            # the version of KUBERNETES_VERSION, else the usual one
    python -m tests.controlplane.build 1.34.4

They are kept in `$RIGHTSLICE_CACHE` (else `$XDG_CACHE_HOME/rightslice`, else `~/.cache/rightslice`), under
`controlplane/VERSION/bin`. Each program appears there whole or not at all, so a build that was stopped goes on where it
was. `KUBEBUILDER_ASSETS`, if set, names a folder whose programs are used instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.errors import BuildError, ToolError
from tests.controlplane.programs import KUBERNETES, Program, plane, prometheus, versions
from tests.controlplane.toolchain import find_go

Say = Callable[[str], object]

LONGEST = 3600
"""Seconds until the build of one program is given up: a machine that needs longer hangs."""


def tell(line: str) -> None:
    """Say what is going on, to people."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # its place is the terminal


def wanted_version() -> str:
    """The version of Kubernetes to test: KUBERNETES_VERSION, else the usual one.

    Raises:
        BuildError: no module of ours builds that version.
    """
    wanted = os.environ.get("KUBERNETES_VERSION", "").removeprefix("v") or KUBERNETES
    if wanted not in versions():
        raise BuildError(f"KUBERNETES_VERSION must be one of {', '.join(versions())}, found {wanted!r}.")
    return wanted


def cache() -> Path:
    """Where everything that was built is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RIGHTSLICE_CACHE") or Path(home, "rightslice")).absolute()


def control_plane(kubernetes: str, say: Say = tell) -> dict[str, Path]:
    """The programs of a control plane by name; what is not there yet is built first."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    given = {file.name: file for file in Path(assets).iterdir()} if assets else {}
    missing = [program for program in plane(kubernetes) if program.name not in given]
    return given | ensure(missing, cache() / "controlplane" / kubernetes / "bin", say)


def prometheus_program(say: Say = tell) -> Path:
    """The program of Prometheus; built first where it is not there yet."""
    program = prometheus()
    return ensure([program], cache() / "prometheus" / program.version / "bin", say)[program.name]


def ensure(programs: Sequence[Program], folder: Path, say: Say = tell) -> dict[str, Path]:
    """Programs by name, in a folder; those that are not there yet are built, by one caller at a time."""
    paths = {program.name: folder / program.name for program in programs}
    if not all(path.is_file() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / "lock", say):
            _build([program for program in programs if not paths[program.name].is_file()], folder, say)
    return paths


@contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold a file's lock; the system gives it back whatever becomes of us."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is building into {lock.parent}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(programs: Sequence[Program], folder: Path, say: Say) -> None:
    if not programs:
        return
    go = find_go(max((_go_line(program) for program in programs), key=_numbers), cache(), say)
    minutes = round(sum(program.seconds for program in programs) / 60) or 1
    say(f"Building what the tests of a real cluster run on, once: usually about {minutes} min on two cores.")
    say(f"It is kept in {folder}; `make test-fast` does without it.")
    for number, program in enumerate(programs, 1):
        say(f"[{number}/{len(programs)}] {program.name} {program.version}: usually {program.seconds} s")
        begin = time.monotonic()
        _build_one(program, folder, go)
        say(f"      done in {time.monotonic() - begin:.0f} s")


def _go_line(program: Program) -> str:
    text = (program.module / "go.mod").read_text(encoding="utf-8")
    line: str = re.findall(r"^go (\S+)$", text, re.MULTILINE)[0]
    return line


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


def environment() -> dict[str, str]:
    """The environment of the compiler: the caller's way to modules and caches, and nothing that changes the outcome."""
    changing = {"GOFLAGS", "GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT"}
    kept = {name: value for name, value in os.environ.items() if name not in changing}
    return {**kept, "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def main() -> int:
    """Build what is missing, and say where it is."""
    try:
        os.environ.update(zip(["KUBERNETES_VERSION"], sys.argv[1:], strict=False))
        control_plane(wanted_version())
        prometheus_program()
    except BuildError as error:
        tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
