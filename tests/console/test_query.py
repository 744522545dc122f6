"""The query of an address: what is accepted, and what is said about the rest."""

from __future__ import annotations

import pytest

from webhook.errors import PageQueryError
from webhook.report.console.query import FilterField, PageQuery, page_address, parse_page_query

FIELDS = (FilterField("q", "Name contains"), FilterField("show", "Show", (("idle", "Idle"), ("kept", "Kept"))))
COLUMNS = ("name", "gpus")

VALID = {
    "nothing": ([], PageQuery()),
    "empty values, as a form sends them": ([("q", ""), ("show", ""), ("sort", "")], PageQuery()),
    "a filter": ([("q", "serve")], PageQuery({"q": "serve"})),
    "a choice": ([("show", "idle")], PageQuery({"show": "idle"})),
    "ascending": ([("sort", "gpus")], PageQuery(sort="gpus")),
    "descending": ([("sort", "-gpus")], PageQuery(sort="gpus", descending=True)),
    "a page": ([("page", "3")], PageQuery(page=3)),
}


@pytest.mark.parametrize(("pairs", "want"), VALID.values(), ids=VALID)
def test_a_valid_query(pairs: list[tuple[str, str]], want: PageQuery) -> None:
    assert parse_page_query(pairs, FIELDS, COLUMNS) == want


INVALID = {
    "an unknown parameter": ([("x", "1")], "'x': is no parameter of this page. It has: q, show, sort, page"),
    "a parameter twice": ([("q", "a"), ("q", "b")], "q: must be given once, found it twice"),
    "a long value": ([("q", "a" * 301)], "q: must have at most 300 characters, found 301"),
    "no choice": ([("show", "all")], "show: must be one of idle, kept, found 'all'"),
    "no column": (
        [("sort", "-x")],
        "sort: must be a column, with a hyphen before it for descending order: name, gpus; ",
    ),
    "page zero": ([("page", "0")], "page: must be a whole number from 1 to 100000, found '0'"),
    "a negative page": ([("page", "-1")], "page: must be a whole number"),
    "no number": ([("page", "one")], "page: must be a whole number"),
    "digits of other scripts": ([("page", "٣")], "page: must be a whole number"),
    "a very long number": ([("page", "1" * 300)], "page: must be a whole number"),
}


@pytest.mark.parametrize(("pairs", "message"), INVALID.values(), ids=INVALID)
def test_an_invalid_query(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(PageQueryError) as error:
        parse_page_query(pairs, FIELDS, COLUMNS)

    assert str(error.value).startswith(message)


def test_an_address_keeps_the_filters_and_escapes_them() -> None:
    query = PageQuery({"q": "a&b=<c>"}, "gpus", True, 2)

    assert query.address("/workloads") == "/workloads?q=a%26b%3D%3Cc%3E&sort=-gpus&page=2"
    assert query.address("/workloads", sort="", page="") == "/workloads?q=a%26b%3D%3Cc%3E"
    assert page_address("/nodes", show="") == "/nodes"
