"""GPUPriceList as an admin writes it."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, Strict

from webhook.model.prices import MOST, micro
from webhook.policy.written.base import Written, fault
from webhook.policy.written.kinds import WrittenMetadata
from webhook.policy.written.values import Reason

MANY = 1024
_CURRENCY = re.compile(r"[A-Z]{3}\Z", re.ASCII)


def _currency(text: str) -> str:
    if not _CURRENCY.match(text):
        raise fault("be the three letters of a currency (ISO 4217)", "a code such as USD or EUR")
    return text


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise fault("be the day on which the prices held", 'a day such as "2026-06-01"') from None


def _price(found: Any) -> int:
    """Millionths of the currency."""
    amount = micro(str(found)) if isinstance(found, str | int | float) and not isinstance(found, bool) else None
    if amount is None:
        must = f"be an amount for one card and hour, from 0 to {MOST}, with at most six decimals"
        raise fault(must, 'an amount such as "2.50"')
    return amount


def _product(text: str) -> str:
    if not text.strip():
        raise fault("name a product as the nodes' label nvidia.com/gpu.product does", "NVIDIA-A100-SXM4-80GB")
    return text


class WrittenPrice(Written):
    """One product."""

    product: Annotated[str, Strict(), Field(max_length=253), AfterValidator(_product)]
    per_hour: Annotated[int, PlainValidator(_price)]


class GPUPriceList(Written):
    """One price table."""

    api_version: Literal["rightslice.dev/v1alpha1"]
    kind: Literal["GPUPriceList"]
    metadata: WrittenMetadata
    currency: Annotated[str, Strict(), AfterValidator(_currency)]
    as_of: Annotated[str, Strict(), AfterValidator(_day)]
    source: Reason
    example: Annotated[bool, Strict()] = False
    prices: tuple[WrittenPrice, ...] = Field(min_length=1, max_length=MANY)
