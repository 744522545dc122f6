"""Build the programs of a control plane, and others that tests need, once, and cache them.

    python -m tests.controlplane.build            # the version of KUBERNETES_VERSION, or the default
    python -m tests.controlplane.build 1.34.4

The cache is `$RIGHTSLICE_CACHE` (or `$XDG_CACHE_HOME/rightslice`, or `~/.cache/rightslice`), under
`controlplane/VERSION/bin`. Programs are stored atomically, so an interrupted build continues where it stopped.
`KUBEBUILDER_ASSETS`, if set, is a folder whose programs are used instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane.build_cache import Printer, cache, lock_folder, print_message
from tests.controlplane.definitions import OPERATORS, definitions
from tests.controlplane.errors import BuildError, ToolError
from tests.controlplane.programs import (
    KUBERNETES,
    Program,
    crane,
    filters,
    helm,
    jobset,
    karpenter,
    krew,
    kueue,
    plane,
    prometheus,
    quotas,
    runc,
    selectors,
    trainer,
    umoci,
    versions,
)
from tests.controlplane.toolchain import environment, find_c_compiler, find_go, go_line, release

BUILD_SECONDS = 7200
"""Timeout of the build of one program, in seconds; a build that takes longer hangs."""


def wanted_version() -> str:
    """Return the Kubernetes version to test: KUBERNETES_VERSION, or the default.

    Raises:
        BuildError: that version cannot be built.
    """
    wanted = os.environ.get("KUBERNETES_VERSION", "").removeprefix("v") or KUBERNETES
    if wanted not in versions():
        raise BuildError(f"KUBERNETES_VERSION must be one of {', '.join(versions())}, found {wanted!r}.")
    return wanted


def is_minor_or_newer(minor: int) -> bool:
    """Return whether the version to test is Kubernetes 1.MINOR or newer."""
    return release(wanted_version()) >= (1, minor)


def control_plane(kubernetes: str, report: Printer = print_message) -> dict[str, Path]:
    """Return the programs of a control plane by name; missing ones are built first."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    existing = {file.name: file for file in Path(assets).iterdir()} if assets else {}
    missing = [program for program in plane(kubernetes) if program.name not in existing]
    return existing | ensure(missing, cache() / "controlplane" / kubernetes / "bin", report)


def prometheus_program(report: Printer = print_message) -> Path:
    """Return the program of Prometheus; it is built first if it is missing."""
    program = prometheus()
    return ensure([program], cache() / "prometheus" / program.version / "bin", report)[program.name]


def filters_program(kubernetes: str, report: Printer = print_message) -> Path:
    """Return the program that runs the filters of the scheduler; it is built first if its source has changed."""
    program = filters(kubernetes)
    return ensure([program], cache() / "filters" / kubernetes / "bin", report)[program.name]


def selectors_program(kubernetes: str, report: Printer = print_message) -> Path:
    """Return the program that evaluates selectors of devices; it is built first if its source has changed."""
    program = selectors(kubernetes)
    return ensure([program], cache() / "selectors" / kubernetes / "bin", report)[program.name]


def quotas_program(kubernetes: str, report: Printer = print_message) -> Path:
    """Return the program that runs quota admission; it is built first if its source has changed."""
    program = quotas(kubernetes)
    return ensure([program], cache() / "quotas" / kubernetes / "bin", report)[program.name]


def kueue_program(report: Printer = print_message) -> Path:
    """Return the program of Kueue; it is built first if it is missing."""
    program = kueue()
    return ensure([program], cache() / "kueue" / program.version / "bin", report)[program.name]


def jobset_program(report: Printer = print_message) -> Path:
    """Return the controller of JobSets; it is built first if it is missing."""
    program = jobset()
    return ensure([program], cache() / "jobset" / program.version / "bin", report)[program.name]


def trainer_program(report: Printer = print_message) -> Path:
    """Return the controller of TrainJobs; it is built first if it is missing."""
    program = trainer()
    return ensure([program], cache() / "trainer" / program.version / "bin", report)[program.name]


def karpenter_program(report: Printer = print_message) -> Path:
    """Return the program of Karpenter; it is built first if it is missing."""
    program = karpenter()
    return ensure([program], cache() / "karpenter" / program.version / "bin", report)[program.name]


def helm_program(report: Printer = print_message) -> Path:
    """Return the program of Helm; it is built first if it is missing."""
    program = helm()
    return ensure([program], cache() / "helm" / program.version / "bin", report)[program.name]


def krew_program(report: Printer = print_message) -> Path:
    """Return the program of krew; it is built first if it is missing."""
    program = krew()
    return ensure([program], cache() / "krew" / program.version / "bin", report)[program.name]


def runc_program(report: Printer = print_message) -> Path:
    """Return the program of runc; it is built first if it is missing."""
    program = runc()
    return ensure([program], cache() / "runc" / program.version / "bin", report)[program.name]


def umoci_program(report: Printer = print_message) -> Path:
    """Return the program of umoci; it is built first if it is missing."""
    program = umoci()
    return ensure([program], cache() / "umoci" / program.version / "bin", report)[program.name]


def crane_program(report: Printer = print_message) -> Path:
    """Return the program of crane; it is built first if it is missing."""
    program = crane()
    return ensure([program], cache() / "crane" / program.version / "bin", report)[program.name]


def ensure(programs: Sequence[Program], folder: Path, report: Printer = print_message) -> dict[str, Path]:
    """Return programs by name, in a folder; missing ones are built, by one caller at a time."""
    paths = {program.name: folder / program.name for program in programs}
    if not all(path.is_file() for path in paths.values()):
        with lock_folder(folder.parent, report):
            folder.mkdir(exist_ok=True)
            _build([program for program in programs if not paths[program.name].is_file()], folder, report)
    return paths


def _build(programs: Sequence[Program], folder: Path, report: Printer) -> None:
    if not programs:
        return
    go = find_go(max((go_line(program.module) for program in programs), key=_numbers), cache(), report)
    minutes = round(sum(program.seconds for program in programs) / 60) or 1
    report(f"Building the control plane for the cluster tests, once: usually about {minutes} min on two cores.")
    report(f"It is cached in {folder}; `make test-fast` does not need it.")
    for number, program in enumerate(programs, 1):
        report(f"[{number}/{len(programs)}] {program.name} {program.version}: usually {program.seconds} s")
        start = time.monotonic()
        compiler = {"CGO_ENABLED": "1", "CC": find_c_compiler(cache(), report)} if program.cgo else {}
        _build_one(program, folder, go, compiler)
        report(f"      done in {time.monotonic() - start:.0f} s")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _build_one(program: Program, folder: Path, go: Path, compiler: dict[str, str]) -> None:
    ldflags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in program.variables)])
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        built = Path(new) / program.name
        flags = ["-mod=readonly", "-trimpath", "-tags", ",".join(program.tags), "-ldflags", ldflags, "-o", str(built)]
        done = subprocess.run(
            [str(go), "build", *flags, program.package],
            cwd=program.module,
            env=environment() | compiler,
            stderr=subprocess.PIPE,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode:
            last_lines = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise ToolError(f"{program.name} {program.version} could not be built with {go}:\n{last_lines}")
        built.rename(folder / program.name)


def main() -> int:
    """Build missing programs, and print their folder."""
    try:
        os.environ.update(zip(["KUBERNETES_VERSION"], sys.argv[1:], strict=False))
        control_plane(wanted_version())
        filters_program(wanted_version())
        selectors_program(KUBERNETES)
        quotas_program(KUBERNETES)
        prometheus_program()
        kueue_program()
        jobset_program()
        trainer_program()
        karpenter_program()
        helm_program()
        krew_program()
        for name in OPERATORS:
            definitions(name)
    except BuildError as error:
        print_message(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
