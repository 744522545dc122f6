"""GPUPriceList files to a price table."""

from __future__ import annotations

from typing import NamedTuple

from webhook.documents.places import Document
from webhook.documents.reading import read
from webhook.errors import DocumentError, Place, PolicyFileError
from webhook.model.prices import Prices
from webhook.model.products import normalised
from webhook.policy.explaining import value_fault
from webhook.policy.validating import UNREADABLE, validated, wrong_kind
from webhook.policy.written.prices import GPUPriceList

KIND = GPUPriceList.__name__


class ReadPrices(NamedTuple):
    """What became of a file: its table, and every fault in it. Without a table there is at least one."""

    prices: Prices | None
    errors: tuple[PolicyFileError, ...]


def read_prices(content: str | bytes, file: str) -> ReadPrices:
    """Read the one price table of a file."""
    try:
        documents = read(content, file)
    except DocumentError as error:
        return ReadPrices(None, (PolicyFileError(error.place, error.sentence, UNREADABLE),))
    if len(documents) != 1:
        must = f"must hold one {KIND}, found {len(documents)} documents. Write one table in one currency"
        return ReadPrices(None, (PolicyFileError(Place(file), must, UNREADABLE),))
    return _table(documents[0])


def _table(document: Document) -> ReadPrices:
    problem = wrong_kind(document, (KIND,))
    if problem is not None:
        return ReadPrices(None, (problem,))
    errors: list[PolicyFileError] = []
    written = validated(document, GPUPriceList, errors)
    if written is not None:
        errors += _repeated(document, written)
    if written is None or errors:
        return ReadPrices(None, tuple(errors))
    prices = {normalised(each.product): each.per_hour for each in written.prices}
    return ReadPrices(Prices(written.currency, prices, written.source, written.as_of, written.example), ())


def _repeated(document: Document, written: GPUPriceList) -> list[PolicyFileError]:
    names = [normalised(each.product) for each in written.prices]
    return [
        value_fault(document, ("prices", index, "product"), "be priced once", "one line for each product")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
