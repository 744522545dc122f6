"""`python -m tests.cluster up`: a plane that runs until it is stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.polling import eventually
from tests.conftest import ROOT
from tests.controlplane.build import control_plane, wanted_version


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_serves_until_it_is_stopped_and_leaves_no_process(end: signal.Signals) -> None:
    programs = control_plane(wanted_version())
    command = [sys.executable, "-m", "tests.cluster", "up", *(["--nodes"] if end == signal.SIGINT else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as up:
        assert up.stdout is not None
        line = up.stdout.readline()
        (kubeconfig,) = re.findall(r"^export KUBECONFIG=(\S+) ", line)
        listed = subprocess.run(
            [programs["kubectl"], "get", "nodes", "--output=name"],
            env={**os.environ, "KUBECONFIG": kubeconfig},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        up.send_signal(end)

    assert ("node/a100-mixed-1" in listed) is (end == signal.SIGINT)
    folder = Path(kubeconfig).parent.parent
    eventually(lambda: running_in(folder) == [])
    assert folder.exists() is (end == signal.SIGKILL), "only a killed process leaves its logs"
    shutil.rmtree(folder, ignore_errors=True)


def running_in(folder: Path) -> list[str]:
    """Return the command lines of processes that contain a folder's path."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue  # it ended meanwhile
    return [line for line in lines if str(folder) in line]
