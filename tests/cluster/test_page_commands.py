"""The commands of the pages that read a live cluster, and those of kubectl, on a real control plane."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.page_folder import make_page_folder
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.test_crds import POLICIES, is_served
from tests.conftest import ROOT
from tests.house.shown_blocks import ShownCommand, commands_by_page

ELSEWHERE = re.compile(
    r"^rightslice (?:serve|install)|--prometheus http|--write\b(?! layout)|^kubectl (?!get|apply -f policies)|get --raw"
)
"""Commands that other tests run: test_install, test_out_of_cluster, test_report_objects and end_to_end/test_pods."""

NAMESPACE = "team-vision"
PROGRAMS = {"rightslice": [sys.executable, "-m", "webhook.cli"]}


def reads_cluster(command: ShownCommand) -> bool:
    """Return whether a command reads the cluster of the current context, and is run here."""
    is_read = command.program == "kubectl" or "--cluster live" in command.text
    return is_read and not ELSEWHERE.search(command.text)


COMMANDS = {page: list(filter(reads_cluster, commands)) for page, commands in commands_by_page().items()}


@pytest.fixture(scope="module")
def served(plane: Plane) -> Iterator[None]:
    """Serve our kinds, with the namespace of the pages; remove it and their policies afterwards."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests/crds"))
    eventually(lambda: is_served(plane, POLICIES))
    plane.add_namespace(NAMESPACE)
    yield
    plane.kubectl("delete", "gpupolicies", "--all")
    plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    plane.wait_until_gone(NAMESPACE)


@pytest.mark.usefixtures("nodes", "served")
@pytest.mark.parametrize("page", sorted(page for page, commands in COMMANDS.items() if commands))
def test_the_commands_of_a_page_run_on_a_cluster(plane: Plane, page: str, tmp_path: Path) -> None:
    make_page_folder(tmp_path)
    environment = {**plane.kubectl_environment(), "PYTHONPATH": str(ROOT)}
    for command in COMMANDS[page]:
        program = PROGRAMS.get(command.program, [command.program])
        ran = subprocess.run(
            [*program, *command.words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert ran.returncode in (0, 1), f"{command.text}\n{ran.stderr}"
        assert not re.search(r"^(?:error|Error|Traceback)", ran.stderr, re.MULTILINE), f"{command.text}\n{ran.stderr}"
        if command.target:
            (tmp_path / command.target).write_text(ran.stdout, encoding="utf-8")
