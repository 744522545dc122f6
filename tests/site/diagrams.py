"""`python -m tests.site.diagrams mermaid.min.js`: draw the pictures of the diagrams that have none.

The pages of the site show them, so that a reader's browser needs no program for diagrams. GitHub draws the diagrams
itself. The program is https://mermaid.js.org in version 10.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.browser.driver import BrowserProcess, start_browser
from tests.browser.installation import install_browser
from tests.conftest import ROOT
from tests.site.pages import DIAGRAMS, diagrams, picture_of

OPTIONS = {"startOnLoad": False, "theme": "neutral", "fontFamily": "Arial, Helvetica, sans-serif"}
DRAW = """\
mermaid.initialize({options});
const {{svg}} = await mermaid.render("diagram", {diagram});
const holder = document.createElement("div");
holder.innerHTML = svg;
const [picture] = holder.children;
picture.setAttribute("width", Math.ceil(picture.viewBox.baseVal.width));
picture.setAttribute("height", Math.ceil(picture.viewBox.baseVal.height));
return new XMLSerializer().serializeToString(picture);
"""


def draw(browser: BrowserProcess, diagram: str, mermaid: str) -> str:
    """Return a diagram as SVG."""
    inlined = mermaid.replace("</script", r"<\/script")
    page = f"<!DOCTYPE html><meta charset=utf-8><body><script>{inlined}</script>"
    script = DRAW.format(options=json.dumps(OPTIONS), diagram=json.dumps(diagram))
    drawn = browser.evaluate(page, script)
    assert isinstance(drawn, str)
    return drawn


def main(program: Path) -> None:
    """Draw what is missing, and remove pictures of diagrams that no page has."""
    wanted = {ROOT / "docs" / picture_of(diagram): diagram for diagram in diagrams(ROOT)}
    for file in set((ROOT / "docs" / DIAGRAMS).glob("*.svg")) - set(wanted):
        file.unlink()
    missing = {file: diagram for file, diagram in wanted.items() if not file.exists()}
    with start_browser(install_browser()) as browser:
        for file, diagram in missing.items():
            file.write_text(draw(browser, diagram, program.read_text(encoding="utf-8")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
