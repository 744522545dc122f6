"""Links in pages work, and no file of the checkout contains a machine path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.checkout import ROOT, files, pages, read_checkout_file, without_code
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
    """Return the anchors of a page's headings, as GitHub and GitLab build them."""
    headings = re.findall(r"^#+ +(.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def is_broken_link(page: Path, link: str) -> bool:
    """Return whether the file or heading of a link into the checkout does not exist."""
    if link.startswith(OUTSIDE):
        return False
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_exists_and_is_not_empty(name: str) -> None:
    assert len(read_checkout_file(name).split()) > 30


def test_every_link_into_the_checkout_works() -> None:
    links = [(page, link) for page in pages() for link in LINK.findall(without_code(page))]

    assert len(links) > 10
    assert [(page.name, link) for page, link in links if is_broken_link(page, link)] == []


def test_a_link_to_a_missing_file_or_heading_is_found() -> None:
    readme = ROOT / "README.md"

    assert is_broken_link(readme, "docs/no-such-page.md")
    assert is_broken_link(readme, "docs/policy.md#no-such-heading")
    assert not is_broken_link(readme, "docs/policy.md")


def test_the_readme_links_every_page_of_docs() -> None:
    linked = {link.split("#")[0] for link in LINK.findall(without_code(ROOT / "README.md"))}

    assert {str(page.relative_to(ROOT)) for page in pages() if page.parent == ROOT / "docs"} - linked == set()


def test_the_page_of_codes_is_generated_from_the_table() -> None:
    assert read_checkout_file("docs/codes.md") == codes_markdown(), (
        "regenerate it: rightslice explain --all > docs/codes.md"
    )
    assert re.findall(r"^### (\S+)$", codes_markdown(), re.MULTILINE) == list(CODES)


def test_the_page_of_metrics_is_generated_from_the_table() -> None:
    message = "write it again: python -m webhook.telemetry.metrics > docs/metrics.md"

    assert read_checkout_file("docs/metrics.md") == metrics_page(), message


def test_no_page_or_alert_names_a_metric_that_does_not_exist() -> None:
    text = "\n".join(page.read_text("utf-8") for page in pages() if page.name != "CHANGELOG.md")
    names = set(re.findall(r"\brightslice_[a-z_]+", text + read_checkout_file("manifests/monitoring/alerts.yaml")))

    assert {name.removesuffix("_bucket") for name in names} - {metric.name for metric in METRICS} == set()


def test_no_page_names_a_code_that_does_not_exist() -> None:
    named = {code for page in pages() for code in re.findall(r"GPU-[SLQRTICP]\d{3}\b", page.read_text("utf-8"))}

    assert named - set(CODES) == set()


def test_no_file_names_one_machine_or_one_package_index() -> None:
    machine = re.compile(
        rb"(?<![\w.])/(?:work|root|home/(?!kubernetes/)\w+|tmp/wt)/|pypi\.org|pythonhosted|-i https?://|\.pyenv"
    )
    found = [file for file in files() if file != Path(__file__) and machine.search(file.read_bytes())]

    assert found == []
