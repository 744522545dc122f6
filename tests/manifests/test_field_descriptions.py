"""Fields of the CRDs have the descriptions of docs/policy.md."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.manifests.field_descriptions import read_field_descriptions

DESCRIPTIONS = read_field_descriptions((ROOT / "docs/policy.md").read_text(encoding="utf-8"))


def test_a_description_has_the_default_and_no_markup() -> None:
    assert DESCRIPTIONS["spec.rightSizing.minSavingPercent"] == (
        "Minimum share of the request that a rewrite must save. Default: 20."
    )


def test_members_of_lists_are_described() -> None:
    assert DESCRIPTIONS["spec.quotas.gpuMilli"] == "Maximum for all pods together; 1000 is one whole GPU."


def test_sentences_that_only_link_to_the_page_are_omitted() -> None:
    assert not any("[" in text and "](" in text for text in DESCRIPTIONS.values())
    assert DESCRIPTIONS["spec.match.matchConditions"].endswith("At most 64.")
