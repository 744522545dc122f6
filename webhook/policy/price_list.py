"""GPUPriceList files to a price table."""

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
    """What became of a file: its table, and every fault in it. Without a table there is at least one."""

    prices: PriceTable | None
    errors: tuple[PolicyFileError, ...]


def load_price_list(content: str | bytes, file: str) -> PriceListResult:
    """Read the one price table of a file."""
    try:
        documents = read_documents(content, file)
    except DocumentError as error:
        return PriceListResult(None, (PolicyFileError(error.location, error.message, UNREADABLE),))
    if len(documents) != 1:
        must = f"must hold one {PRICE_LIST_KIND}, found {len(documents)} documents. Write one table in one currency"
        return PriceListResult(None, (PolicyFileError(SourceLocation(file), must, UNREADABLE),))
    return _parse_price_list(documents[0])


def _parse_price_list(document: Document) -> PriceListResult:
    problem = kind_error(document, (PRICE_LIST_KIND,))
    if problem is not None:
        return PriceListResult(None, (problem,))
    errors: list[PolicyFileError] = []
    written = validate_document(document, GPUPriceList, errors)
    if written is not None:
        errors += _repeated_product_errors(document, written)
    if written is None or errors:
        return PriceListResult(None, tuple(errors))
    prices = {normalized_product(each.product): each.per_hour for each in written.prices}
    return PriceListResult(PriceTable(written.currency, prices, written.source, written.as_of, written.example), ())


def _repeated_product_errors(document: Document, written: GPUPriceList) -> list[PolicyFileError]:
    names = [normalized_product(each.product) for each in written.prices]
    return [
        value_error(document, ("prices", index, "product"), "be priced once", "one line for each product")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
