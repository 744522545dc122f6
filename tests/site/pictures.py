"""`python -m tests.site.pictures`: make the pictures of reports that README and the docs show."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.browser.driver import BrowserProcess, start_browser
from tests.browser.installation import install_browser
from tests.conftest import ROOT

WIDTH = 1200


class ReportPicture(NamedTuple):
    """A part of the HTML report that a command writes about the example cluster."""

    command: str
    starts_at: str
    height: int


PICTURES = {
    "audit.png": ReportPicture("audit", "h1", 720),
    "layout.png": ReportPicture("layout", "h2", 955),
}


def write_report(command: str, file: Path) -> None:
    """Write the HTML report of a command."""
    call = [sys.executable, "-m", "webhook.cli", command, "--cluster", "demo", "-o", f"html={file}"]
    subprocess.run(call, cwd=ROOT, check=True, capture_output=True)


def take_picture(browser: BrowserProcess, picture: ReportPicture, target: Path) -> None:
    """Write the part of the report from its first element that matches `starts_at`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.html")
        write_report(picture.command, report)
        with browser.open(report.read_text(encoding="utf-8"), width=WIDTH, height=picture.height) as page:
            page.evaluate(f"window.scrollTo(0, document.querySelector('{picture.starts_at}').offsetTop - 16)")
            page.screenshot(target, full=False)


if __name__ == "__main__":
    with start_browser(install_browser()) as running:
        for name, each in PICTURES.items():
            take_picture(running, each, ROOT / "docs" / "pictures" / name)
