"""The query of a page's address: filters, the column to sort by and the page number, all bounded and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

from webhook.errors import PageQueryError, quote_text

ROWS_PER_PAGE = 100
MAX_VALUE_LETTERS = 300
"""Characters of a filter: more than a Kubernetes name can have."""

MAX_PAGE = 100_000
DESCENDING = "-"
"""Stands before the column in `sort=-gpus`."""


class FilterField(NamedTuple):
    """A filter of a page.

    Attributes:
        name: Its parameter.
        label: Its label for people.
        choices: The values it can have, with their labels; empty for free text.
    """

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()


NAMESPACE_FILTER = FilterField("namespace", "Namespace")


class PageQuery(NamedTuple):
    """A checked query.

    Attributes:
        filters: The filters that are set.
        sort: The key of the column to sort by; "" for the order of the page.
        page: From 1.
    """

    filters: Mapping[str, str] = {}
    sort: str = ""
    descending: bool = False
    page: int = 1

    def value(self, name: str) -> str:
        """Return the value of a filter; "" if it is not set."""
        return self.filters.get(name, "")

    def address(self, path: str, **changes: str) -> str:
        """Return the address of this query with some parameters changed; an empty one is left out."""
        sort = f"{DESCENDING * self.descending}{self.sort}"
        parameters = {**self.filters, "sort": sort, "page": str(self.page) if self.page > 1 else "", **changes}
        return page_address(path, **parameters)


def page_address(path: str, **parameters: str) -> str:
    """Return the address of a page with those parameters that are not empty."""
    text = urlencode({name: value for name, value in parameters.items() if value}, quote_via=quote, safe="/")
    return f"{path}?{text}" if text else path


def node_address(name: str) -> str:
    """Return the address of the page of a node; "" without a name."""
    return page_address("/node", name=name) if name else ""


def workload_address(namespace: str, name: str) -> str:
    """Return the address of the page of a workload."""
    return page_address("/workload", namespace=namespace, name=name)


def parse_page_query(
    pairs: Iterable[tuple[str, str]], fields: Sequence[FilterField] = (), columns: Sequence[str] = ()
) -> PageQuery:
    """Check the parameters of an address.

    Args:
        fields: The filters of the page.
        columns: Keys of the columns that the page can be sorted by.

    Raises:
        PageQueryError: A parameter is unknown, given twice, too long, or has a value that it cannot have.
    """
    given: dict[str, str] = {}
    known = {field.name: field for field in fields}
    allowed = [*known, *(("sort", "page") if columns else ())]
    for name, value in pairs:
        if name not in allowed:
            names = ", ".join(allowed) or "none"
            raise PageQueryError(f"{quote_text(name)}: is no parameter of this page. It has: {names}")
        if name in given:
            raise PageQueryError(f"{name}: must be given once, found it twice")
        if len(value) > MAX_VALUE_LETTERS:
            raise PageQueryError(f"{name}: must have at most {MAX_VALUE_LETTERS} characters, found {len(value)}")
        given[name] = value
    sort, descending = _parse_sort(given.pop("sort", ""), columns)
    page = _parse_page(given.pop("page", ""))
    filters = {name: _checked_value(known[name], value) for name, value in given.items() if value}
    return PageQuery(filters, sort, descending, page)


def _checked_value(field: FilterField, value: str) -> str:
    choices = [choice for choice, _ in field.choices]
    if choices and value not in choices:
        raise PageQueryError(f"{field.name}: must be one of {', '.join(choices)}, found {quote_text(value)}")
    return value


def _parse_sort(text: str, columns: Sequence[str]) -> tuple[str, bool]:
    key = text.removeprefix(DESCENDING)
    if key and key not in columns:
        must = f"must be a column, with a hyphen before it for descending order: {', '.join(columns)}"
        raise PageQueryError(f"sort: {must}; found {quote_text(text)}")
    return key, text.startswith(DESCENDING) and bool(key)


def _parse_page(text: str) -> int:
    if not text:
        return 1
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PAGE))
    if not (digits and 1 <= int(text) <= MAX_PAGE):
        raise PageQueryError(f"page: must be a whole number from 1 to {MAX_PAGE}, found {quote_text(text)}")
    return int(text)
