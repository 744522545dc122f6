"""Pages: their links lead somewhere, and nothing in the checkout speaks of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, files, pages, read, without_code
from webhook.model.codes import CODES
from webhook.report.code_pages import codes_markdown
from webhook.telemetry.metrics import METRICS, metrics_page

LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
OUTSIDE = ("https://", "mailto:")

EXPECTED = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/architecture.md",
    "docs/codes.md",
    "docs/policy.md",
    "docs/safety.md",
]


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link, as GitHub and GitLab make it."""
    headings = re.findall(r"^#+ +(.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, link: str) -> bool:
    """True for a link into the checkout whose file or heading does not exist."""
    if link.startswith(OUTSIDE):
        return False
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_is_there_and_says_something(name: str) -> None:
    assert len(read(name).split()) > 30


def test_every_link_into_the_checkout_leads_somewhere() -> None:
    links = [(page, link) for page in pages() for link in LINK.findall(without_code(page))]

    assert len(links) > 10
    assert [(page.name, link) for page, link in links if leads_nowhere(page, link)] == []


def test_a_link_to_a_missing_file_or_heading_is_seen() -> None:
    readme = ROOT / "README.md"

    assert leads_nowhere(readme, "docs/no-such-page.md")
    assert leads_nowhere(readme, "docs/policy.md#no-such-heading")
    assert not leads_nowhere(readme, "docs/policy.md")


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    linked = {link.split("#")[0] for link in LINK.findall(without_code(ROOT / "README.md"))}

    assert {str(page.relative_to(ROOT)) for page in pages() if page.parent == ROOT / "docs"} - linked == set()


def test_the_page_of_codes_is_made_from_the_table() -> None:
    assert read("docs/codes.md") == codes_markdown(), "regenerate it: rightslice explain --all > docs/codes.md"
    assert re.findall(r"^### (\S+)$", codes_markdown(), re.MULTILINE) == list(CODES)


def test_the_page_of_metrics_is_generated_from_the_table() -> None:
    message = "write it again: python -m webhook.telemetry.metrics > docs/metrics.md"

    assert read("docs/metrics.md") == metrics_page(), message


def test_no_page_or_alert_names_a_metric_that_does_not_exist() -> None:
    text = "\n".join(page.read_text("utf-8") for page in pages() if page.name != "CHANGELOG.md")
    names = set(re.findall(r"\brightslice_[a-z_]+", text + read("manifests/monitoring/alerts.yaml")))

    assert {name.removesuffix("_bucket") for name in names} - {metric.name for metric in METRICS} == set()


def test_no_page_names_a_code_that_does_not_exist() -> None:
    named = {code for page in pages() for code in re.findall(r"GPU-[SLQRTICP]\d{3}\b", page.read_text("utf-8"))}

    assert named - set(CODES) == set()


def test_nothing_speaks_of_one_machine_or_one_package_index() -> None:
    machine = re.compile(rb"(?<![\w.])/(?:work|root|home/\w+|tmp/wt)/|pypi\.org|pythonhosted|-i https?://|\.pyenv")
    found = [file for file in files() if file != Path(__file__) and machine.search(file.read_bytes())]

    assert found == []
