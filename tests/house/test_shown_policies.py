"""Every policy that a page shows can be used as it stands."""

from __future__ import annotations

import re

import pytest

from tests.house.checkout import ROOT, pages
from webhook.policy.loader import load_policies


def shown(kind: str) -> list[tuple[str, str]]:
    """What pages show of a kind: the page it stands in, and the YAML."""
    found = []
    for page in pages():
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        name = str(page.relative_to(ROOT))
        found += [(name, block) for block in blocks if re.search(rf"^kind: {kind}$", block, re.MULTILINE)]
    return found


def test_the_readme_shows_a_policy_of_fifteen_lines() -> None:
    (block,) = [block for page, block in shown("GPUPolicy") if page == "README.md"]

    assert len(block.splitlines()) <= 15


@pytest.mark.parametrize(("page", "block"), shown("GPUPolicy"))
def test_a_policy_in_a_page_can_be_used(page: str, block: str) -> None:
    assert load_policies([(page, block)]).errors == ()


@pytest.mark.parametrize(("page", "block"), shown("GPUPolicyException"))
def test_an_exception_in_a_page_fits_a_policy_beside_it(page: str, block: str) -> None:
    policies = [source for source in shown("GPUPolicy") if source[0] == page]

    assert load_policies([*policies, (page, block)]).errors == ()
