"""Every command of a recipe prints what its page shows, with the files of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
FILE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^```console\n\$ rightslice ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def output(call: str, folder: Path) -> str:
    """Return what a call of `rightslice` prints to standard output."""
    command = [sys.executable, "-m", "webhook.cli", *shlex.split(call)]
    env = {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=env)
    return ran.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_recipe_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(f"# {name}\n{content}")
    calls = dict(COMMAND.findall(text))
    assert calls
    assert len(calls) == text.count("```console")
    assert {call: output(call, tmp_path) for call in calls} == calls
