"""docs/policy.md agrees with the models of policies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.house.checkout import ROOT, read_checkout_file, without_code
from webhook.policy.policy_tests import GPUPolicyTest
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException, MetadataSpec
from webhook.policy.written.match import MatchSpec
from webhook.policy.written.sections import (
    Bypass,
    CudaSpec,
    InjectionSpec,
    LimitsSpec,
    QuotasSpec,
    RightSizingSpec,
    SecuritySpec,
    TopologySpec,
)

PAGE = "docs/policy.md"
SECTIONS: dict[str, type[BaseModel]] = {
    "match": MatchSpec,
    "rightSizing": RightSizingSpec,
    "limits": LimitsSpec,
    "quotas": QuotasSpec,
    "injection": InjectionSpec,
    "topology": TopologySpec,
    "cuda": CudaSpec,
    "security": SecuritySpec,
}
UNDOCUMENTED = {"apiVersion", "kind", "status", "metadata"}


def key(name: str, field: FieldInfo) -> str:
    """Return the name of a field in YAML."""
    return field.alias or name


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def fields_of(model: type[BaseModel]) -> Iterator[str]:
    """Yield the YAML names of all fields below a model."""
    if issubclass(model, MetadataSpec):
        return
    for name, field in model.model_fields.items():
        yield key(name, field)
        for below in models_in(field.annotation):
            yield from fields_of(below)


def rows(section: str) -> dict[str, str]:
    """Return field and default from the first table under a section's heading."""
    part = read_checkout_file(PAGE).split(f"\n### spec.{section}\n", 1)[1].split("\n### ", 1)[0]
    found = re.findall(r"^\| `(\w+)`(?:, `\w+`)* \| .* \| (.*) \| .* \|$", part, re.MULTILINE)
    return dict(found)


def format_default(default: object) -> str:
    """Format a default as YAML."""
    return f"[{', '.join(map(str, default))}]" if isinstance(default, tuple) else str(default)


@pytest.mark.parametrize("kind", [GPUPolicy, GPUPolicyException, GPUPolicyTest], ids=lambda kind: kind.__name__)
def test_every_field_is_on_the_page(kind: type[BaseModel]) -> None:
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", without_code(ROOT / PAGE)))))

    assert set(fields_of(kind)) - UNDOCUMENTED - named == set()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_its_fields_and_no_others(section: str) -> None:
    fields = {key(name, field) for name, field in SECTIONS[section].model_fields.items()}

    assert set(rows(section)) == fields


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_states_the_actual_defaults(section: str) -> None:
    stated = rows(section)
    scalars = {
        key(name, field): format_default(field.default)
        for name, field in SECTIONS[section].model_fields.items()
        if isinstance(field.default, (str, int)) or (isinstance(field.default, tuple) and field.default)
    }

    assert {name: stated[name].split("`")[1] for name in scalars} == scalars


def test_every_bypass_is_on_the_page() -> None:
    assert re.findall(r"^\| `(\w+)` \| `GPU-S\d+` \|", read_checkout_file(PAGE), re.MULTILINE) == list(get_args(Bypass))
