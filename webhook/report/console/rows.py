"""Tables of the console: sorted and divided into pages by the server, as the address says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from markupsafe import Markup, escape

from webhook.report.console.query import DESCENDING, ROWS_PER_PAGE, FilterField, PageQuery
from webhook.report.tables import (
    MAX_NAME_LETTERS,
    MAX_SENTENCE_LETTERS,
    Column,
    Table,
    cell_classes,
    fold_text,
    header_attributes,
    html_words,
    is_folded,
)
from webhook.report.text import pluralize, sanitize

Row = TypeVar("Row")


LONG_TEXT = "long"
"""The class of a cell that is set in several lines."""

FilterValues = Mapping[FilterField, Callable[[], Iterable[str]]]
"""By a filter that selects a whole value, what returns the values that there are."""

MAX_HINTS = 10
"""Values that a hint names."""


class PageLink(NamedTuple):
    """A link to a page of a table; without an address it is the page that is shown, or there is none."""

    label: str
    address: str


Links = Mapping[str, Callable[[Row], str | Sequence[PageLink]]]
"""By the header of a column, what returns the address that a cell links to, "" for none; or all its links."""

NO_LINKS: Mapping[str, Callable[[Any], str]] = {}


class FilterHint(NamedTuple):
    """Why a filter selects nothing, with links to what it may mean."""

    text: str
    links: tuple[PageLink, ...]


class TablePage(NamedTuple):
    """One page of a table.

    Attributes:
        rows: The table as HTML.
        summary: Which rows these are, for people.
        links: To the page before and the one after.
        hints: Of an empty table, filters with a part of a value.
    """

    rows: Markup
    summary: str
    links: tuple[PageLink, ...]
    hints: tuple[FilterHint, ...]


def sort_keys(table: Table[Row]) -> list[str]:
    """Return what `sort` of an address may name: the headers in small letters."""
    return [_sort_key(column) for column in _shown_columns(table) if column.sortable]


def table_page(
    table: Table[Row],
    rows: Sequence[Row],
    query: PageQuery,
    path: str,
    noun: str,
    links: Links[Row] = NO_LINKS,
    values: FilterValues | None = None,
) -> TablePage:
    """Sort rows, and return one page of them.

    Args:
        table: Its first column names the row.
        path: The path of the page, for links that change the query.
        noun: The name of a row, for people.
        links: Return the addresses that cells of some columns link to, by header; "" for none.
        values: The values of filters, for hints.
    """
    ordered = _sort_rows(table, rows, query)
    last = max(1, -(-len(ordered) // ROWS_PER_PAGE))
    page = min(query.page, last)
    shown = ordered[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE]
    return TablePage(
        table_markup(table, shown, noun, links, query, path, folded=True),
        _summary(len(ordered), page, len(shown), noun),
        tuple(_page_links(query, path, page, last)),
        tuple(_hints(query, path, values)) if values and not rows else (),
    )


def table_markup(
    table: Table[Row],
    rows: Sequence[Row],
    noun: str,
    links: Links[Row] = NO_LINKS,
    query: PageQuery | None = None,
    path: str = "",
    *,
    folded: bool = False,
) -> Markup:
    """Return rows as an HTML table in a region that scrolls; with a query, the headers are links that sort it.

    Args:
        folded: Whether of a long text two lines are shown until it is opened.
    """
    columns = _shown_columns(table)
    headers = "".join(_header(column, query, path, sticky=column is columns[0]) for column in columns)
    body = "\n".join(f"<tr>{_row_cells(columns, row, links, folded=folded)}</tr>" for row in rows)
    grid = f"<table><thead><tr>{headers}</tr></thead><tbody>\n{body}</tbody></table>"
    label = escape(f"Table: {plural_of(noun)}")
    return Markup(  # noqa: S704 - every value in it is escaped
        f'<div class="scroll{" folded" * folded}" role="region" aria-label="{label}" tabindex="0">{grid}</div>'
    )


def plural_of(noun: str) -> str:
    """Return the plural of the name of a row.

    >>> plural_of("node"), plural_of("policy")
    ('nodes', 'policies')
    """
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def _shown_columns(table: Table[Row]) -> list[Column[Row]]:
    return [column for column in table.columns if column.header and column.html]


def _sort_key(column: Column[Row]) -> str:
    return column.header.lower()


def _sort_rows(table: Table[Row], rows: Sequence[Row], query: PageQuery) -> Sequence[Row]:
    if not query.sort:
        return rows
    ordered = table.sort(rows, query.sort)
    return ordered[::-1] if query.descending else ordered


def _summary(total: int, page: int, shown: int, noun: str) -> str:
    if shown == total:
        return pluralize(total, noun, plural_of(noun))
    first = (page - 1) * ROWS_PER_PAGE + 1
    return f"{first} to {first + shown - 1} of {pluralize(total, noun, plural_of(noun))}"


def _page_links(query: PageQuery, path: str, page: int, last: int) -> Iterator[PageLink]:
    if page > 1:
        yield PageLink("Previous page", query.address(path, page=str(page - 1) if page > 2 else ""))
    if page < last:
        yield PageLink("Next page", query.address(path, page=str(page + 1)))


def _hints(query: PageQuery, path: str, values: FilterValues) -> Iterator[FilterHint]:
    """Yield a hint for each filter whose value does not exist, with the values that contain it."""
    for field, known in values.items():
        part = query.value(field.name)
        found = {each for each in known() if part.casefold() in each.casefold()} if part else {part}
        if part not in found:
            links = (PageLink(each, query.address(path, **{field.name: each}, page="")) for each in sorted(found))
            end = "Those with it:" if found else "None contains it."
            yield FilterHint(f"{field.label}: must be a whole name, found {part}. {end}", tuple(links)[:MAX_HINTS])


def _header(column: Column[Row], query: PageQuery | None, path: str, *, sticky: bool) -> str:
    css = header_attributes(column, sticky=sticky)
    if query is None or not column.sortable:
        return f'<th scope="col"{css}>{escape(column.header)}</th>'
    key = _sort_key(column)
    is_sorted = query.sort == key
    state = f' aria-sort="{"descending" if query.descending else "ascending"}"' if is_sorted else ""
    falls = not query.descending if is_sorted else column.numeric
    address = query.address(path, sort=f"{DESCENDING * falls}{key}", page="")
    return f'<th scope="col"{css}{state}><a href="{escape(address)}">{escape(column.header)}</a></th>'


def _row_cells(columns: Sequence[Column[Row]], row: Row, links: Links[Row], *, folded: bool) -> str:
    first, *others = columns
    cells = "".join(_cell(column, row, links, folded=folded) for column in others)
    name = _cell_text(first, row, links)
    return f'<th scope="row">{name if name.startswith("<a") else f"<span>{name}</span>"}</th>{cells}'


def _cell(column: Column[Row], row: Row, links: Links[Row], *, folded: bool) -> str:
    text = column.text(row)
    layout = "n" if column.numeric else "code" if column.code else _text_layout(text)
    classes = cell_classes(column, row, layout)
    attributes = f' class="{escape(classes)}"' if classes else ""
    content = _cell_text(column, row, links)
    has_fold = folded and column.header not in links and is_folded(column, text)
    return f"<td{attributes}>{fold_text(content) if has_fold else content}</td>"


def _text_layout(text: str) -> str:
    """Return the class of a text that is set in several lines, or may be broken anywhere."""
    if len(text) <= MAX_SENTENCE_LETTERS:
        return ""
    return LONG_TEXT if " " in text or len(text) > MAX_NAME_LETTERS else ""


def _cell_text(column: Column[Row], row: Row, links: Links[Row]) -> str:
    text, link = column.text(row), links.get(column.header)
    target = link(row) if link else ""
    if target and not isinstance(target, str):
        return ", ".join(_link_text(escape(sanitize(each.label)), each.address) for each in target)
    return _link_text(html_words(text, {}) if column.code and text else escape(text), str(target or ""))


def _link_text(text: str, address: str) -> str:
    return f'<a href="{escape(address)}">{text}</a>' if address else text
