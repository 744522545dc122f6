"""Load GPUPriceList files."""

from __future__ import annotations

from typing import NamedTuple

from webhook.documents.document import Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.model.prices import PriceTable
from webhook.model.products import normalized_product
from webhook.policy.validation import UNREADABLE, kind_error, validate_document, value_error
from webhook.policy.written.price_list import GPUPriceList

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
