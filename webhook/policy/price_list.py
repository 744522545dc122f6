"""Load GPUPriceList files, and define their schema."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, PlainValidator, Strict

from webhook.documents.document import Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.model.node_labels import normalized_product
from webhook.model.prices import MAX_PRICE, PriceTable, parse_micro
from webhook.policy.validation import UNREADABLE, kind_error, validate_document, value_error
from webhook.policy.written.kinds import MetadataSpec
from webhook.policy.written.values import Reason, SpecModel, spec_error
from webhook.well_known import ApiVersion

MAX_PRICES = 1024

_CURRENCY = re.compile(r"[A-Z]{3}\Z", re.ASCII)


def _validate_currency(text: str) -> str:
    if not _CURRENCY.match(text):
        raise spec_error("be a currency code of three letters (ISO 4217)", "a code such as USD or EUR")
    return text


def _validate_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise spec_error("be the date of the prices", 'a date such as "2026-06-01"') from None


def _parse_price(value: Any) -> int:
    """Return millionths of the currency."""
    amount = parse_micro(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if amount is None:
        must = f"be the price of one GPU per hour, from 0 to {MAX_PRICE}, with at most six decimals"
        raise spec_error(must, 'an amount such as "2.50"')
    return amount


def _validate_product(text: str) -> str:
    if not text.strip():
        raise spec_error("be a product as in the node label nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB")
    return text


class PriceSpec(SpecModel):
    """The price of one product."""

    product: Annotated[str, Strict(), Field(max_length=253), AfterValidator(_validate_product)]
    per_hour: Annotated[int, PlainValidator(_parse_price)]


class GPUPriceList(SpecModel):
    """A list of GPU prices."""

    api_version: ApiVersion
    kind: Literal["GPUPriceList"]
    metadata: MetadataSpec
    currency: Annotated[str, Strict(), AfterValidator(_validate_currency)]
    as_of: Annotated[str, Strict(), AfterValidator(_validate_day)]
    source: Reason
    example: Annotated[bool, Strict()] = False
    prices: tuple[PriceSpec, ...] = Field(min_length=1, max_length=MAX_PRICES)


PRICE_LIST_KIND = GPUPriceList.__name__


class PriceListResult(NamedTuple):
    """The prices of a file, or its errors."""

    prices: PriceTable | None
    errors: tuple[PolicyFileError, ...]


def load_price_list(content: str | bytes, file: str) -> PriceListResult:
    """Load the single GPUPriceList of a file."""
    try:
        documents = read_documents(content, file)
    except DocumentError as error:
        return PriceListResult(None, (PolicyFileError(error.location, error.message, UNREADABLE),))
    if len(documents) != 1:
        message = (
            f"must contain one {PRICE_LIST_KIND}, found {len(documents)} documents. Write one list in one currency"
        )
        return PriceListResult(None, (PolicyFileError(SourceLocation(file), message, UNREADABLE),))
    return _parse_price_list(documents[0])


def _parse_price_list(document: Document) -> PriceListResult:
    error = kind_error(document, (PRICE_LIST_KIND,))
    if error is not None:
        return PriceListResult(None, (error,))
    errors: list[PolicyFileError] = []
    price_list = validate_document(document, GPUPriceList, errors)
    if price_list is not None:
        errors += _repeated_product_errors(document, price_list)
    if price_list is None or errors:
        return PriceListResult(None, tuple(errors))
    prices = {normalized_product(price.product): price.per_hour for price in price_list.prices}
    return PriceListResult(
        PriceTable(price_list.currency, prices, price_list.source, price_list.as_of, price_list.example), ()
    )


def _repeated_product_errors(document: Document, price_list: GPUPriceList) -> list[PolicyFileError]:
    names = [normalized_product(price.product) for price in price_list.prices]
    return [
        value_error(document, ("prices", index, "product"), "have one price", "one entry per product")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
