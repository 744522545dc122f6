"""A real browser: the headless Chromium in the wheel of kaleido, with libraries and fonts.

Pages are opened in a frame of it, and a script beside the frame inspects them.
"""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-breakpad", "--disable-dev-shm-usage")
DARK = "--blink-settings=preferredColorScheme=0"
SECONDS, TRIES = 20, 3
"""This old Chromium sometimes hangs at start; otherwise it takes a second or two."""


def browser_path() -> Path:
    """Return the path of the browser."""
    found = find_spec("kaleido")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "executable" / "kaleido"


def evaluate_in_browser(html: str, script: str, *, dark: bool = False, width: int = 1200) -> Any:
    """Open a page and run a script with it as `document` and `window`; return its result as plain data."""
    page = Path(__file__).with_name("browser.js")
    command = [str(browser_path()), "plotly", f"--plotlyjs={page}", *FLAGS, *([DARK] if dark else [])]
    job = {"data": {"data": [{"html": html, "script": script, "width": width}]}, "format": "svg"}
    process = _run(command, json.dumps(job) + "\n")
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(answers) == 2, process.stderr
    assert answers[1]["code"] == 0, answers[1]["message"]
    return json.loads(answers[1]["result"])


def _run(command: list[str], job: str) -> subprocess.CompletedProcess[str]:
    for left in reversed(range(TRIES)):
        try:
            return subprocess.run(command, input=job, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            if not left:
                raise
    raise AssertionError("at least one try is made")
