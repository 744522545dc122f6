"""Every policy in a page loads."""

from __future__ import annotations

import re

import pytest

from tests.house.checkout import ROOT, pages
from webhook.policy.loader import load_policies


def documented_policies(kind: str) -> list[tuple[str, str]]:
    """Return the objects of a kind in the pages: page and YAML."""
    found = []
    for page in pages():
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        name = str(page.relative_to(ROOT))
        found += [(name, block) for block in blocks if re.search(rf"^kind: {kind}$", block, re.MULTILINE)]
    return found


def test_the_policy_of_the_readme_has_at_most_fifteen_lines() -> None:
    (block,) = [block for page, block in documented_policies("GPUPolicy") if page == "README.md"]

    assert len(block.splitlines()) <= 15


@pytest.mark.parametrize(("page", "block"), documented_policies("GPUPolicy"))
def test_a_policy_in_a_page_loads(page: str, block: str) -> None:
    assert load_policies([(page, block)]).errors == ()


@pytest.mark.parametrize(("page", "block"), documented_policies("GPUPolicyException"))
def test_an_exception_in_a_page_matches_a_policy_of_the_page(page: str, block: str) -> None:
    policies = [source for source in documented_policies("GPUPolicy") if source[0] == page]
    shown = (ROOT / page).read_text(encoding="utf-8")
    policies += [
        (file.name, file.read_text(encoding="utf-8"))
        for file in (ROOT / "policies").glob("*.yaml")
        if f"--policies policies/{file.name}" in shown
    ]

    assert load_policies([*policies, (page, block)]).errors == ()
