"""Tables that are declared once, column by column, and written for a terminal, as CSV, as JSON and as HTML."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Generic, TypeVar

from markupsafe import Markup, escape

from webhook.errors import JsonPathError
from webhook.report.text import Paint, TextStyle, align_columns, format_gpus, sanitize, without_style

Row = TypeVar("Row")

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that make a spreadsheet read a cell as a formula."""

NO_VALUE = "-"

MAX_SENTENCE_LETTERS, MAX_NAME_LETTERS = 24, 48
"""Characters of a cell that HTML keeps on one line."""

MAX_CELL_LETTERS, MAX_NARROW_CELL_LETTERS = 48, 28
"""Characters that fit in two lines of a cell, and of one in a narrow column or of codes."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a report.

    Attributes:
        key: Its JSON key; dots nest objects. "" for a column that is not in JSON.
        value: Its value in JSON and CSV.
        header: Its header for people; a terminal shows it in capitals. "" for a column that only programs read.
        cell: Its text for people; by default the value.
        csv: Its header in CSV; None for the key in snake case, "" for a column that is not in CSV.
        csv_value: Its value in CSV where that differs from JSON's.
        numeric: Whether HTML aligns and sorts it by its value as a number.
        empty: Its text for people if there is none.
        terminal, html: Whether it is shown there; a terminal shows the others too with -o wide.
        css: The CSS class of its cell in HTML.
        narrow: Whether HTML sets it in a narrow column, in two lines.
        code: Whether HTML sets its words as code.
        word_css: The CSS classes of such words.
        sortable: Whether rows can be sorted by it on pages of the console.
    """

    key: str
    value: Callable[[Row], object]
    header: str = ""
    cell: Callable[[Row], str] | None = None
    csv: str | None = None
    csv_value: Callable[[Row], object] | None = None
    numeric: bool = False
    empty: str = NO_VALUE
    terminal: bool = True
    html: bool = True
    css: Callable[[Row], str] | None = None
    narrow: bool = False
    code: bool = False
    word_css: Callable[[Row], Mapping[str, str]] = lambda _: {}
    sortable: bool = True

    @property
    def csv_header(self) -> str:
        """Its header in CSV; "" if it has none."""
        if self.csv is not None:
            return self.csv
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.key).replace(".", "_").lower()

    def text(self, row: Row) -> str:
        """Return the cell for people."""
        return sanitize(self.cell(row) if self.cell else str(self.value(row))) or self.empty


def gpu_column(key: str, value: Callable[[Row], int], header: str, **options: Any) -> Column[Row]:
    """Return a column of thousandths of a GPU, which people read as GPUs."""
    return Column(key, value, header, lambda row: format_gpus(value(row)), numeric=True, **options)


@dataclass(frozen=True)
class Table(Generic[Row]):
    """The columns of a report, in order."""

    columns: tuple[Column[Row], ...]

    def to_lines(self, rows: Iterable[Row], paint: Paint = without_style, *, wide: bool = False) -> list[str]:
        """Return the table for a terminal; with `wide` all columns for people."""
        columns = [column for column in self.columns if column.header and (wide or column.terminal)]
        header = [column.header.upper() for column in columns]
        first, *rest = align_columns([header, *([column.text(row) for column in columns] for row in rows)])
        return [paint(first, TextStyle.STRONG), *rest]

    def sort(self, rows: Sequence[Row], by: str, document: Callable[[Row], Any] | None = None) -> list[Row]:
        """Return the rows in ascending order of a column, named by its header, or of a JSONPath of their plain data.

        Args:
            document: Returns the plain data of a row, if that is more than its columns.

        Raises:
            JsonPathError: It is no column, and the JSONPath is invalid or of no row.
        """
        columns = {column.header.upper(): column.value for column in self.columns if column.header}
        value = columns.get(by.upper())
        if value is not None:
            return sorted(rows, key=lambda row: _order(value(row)))
        from webhook.report.jsonpath import values_at_path  # rarely used

        plain = [(document or self.to_document)(row) for row in rows]
        found = [values_at_path(by, each) for each in plain]
        if rows and not any(found):
            known = f"Columns: {', '.join(columns)}. Fields: {', '.join(f'.{key}' for key in plain[0])}"
            raise JsonPathError(f"must be a column or a JSONPath that a row has, found {by!r}. {known}")
        ordered = sorted(zip(found, rows, strict=True), key=lambda pair: _order(*pair[0][:1]))
        return [row for _, row in ordered]

    def to_csv(self, rows: Iterable[Row]) -> str:
        """Return CSV (RFC 4180); a text that a spreadsheet would run as a formula starts with an apostrophe."""
        columns = [column for column in self.columns if column.csv_header]
        text = StringIO()
        writer = csv.writer(text)
        writer.writerow([column.csv_header for column in columns])
        for row in rows:
            writer.writerow([_csv_cell((column.csv_value or column.value)(row)) for column in columns])
        return text.getvalue()

    def to_document(self, row: Row) -> dict[str, Any]:
        """Return one row as plain data."""
        document: dict[str, Any] = {}
        for column in self.columns:
            if column.key:
                *parents, last = column.key.split(".")
                target = document
                for parent in parents:
                    target = target.setdefault(parent, {})
                target[last] = column.value(row)
        return document

    def to_html(self, rows: Iterable[Row], name: str = "", row_header: str = "") -> Markup:
        """Return an HTML table whose headers sort it.

        Args:
            name: The id of the table.
            row_header: The header of the column that stays in view when the table scrolls; by default the first.
        """
        return Markup("").join(self.html_pieces(rows, name, row_header))

    def html_pieces(self, rows: Iterable[Row], name: str = "", row_header: str = "") -> Iterator[Markup]:
        """Yield `to_html` piece by piece, one for each row: the rows of a large cluster are tens of megabytes."""
        columns = [column for column in self.columns if column.header and column.html]
        naming = next((column for column in columns if column.header == row_header), columns[0])
        table_id = f' id="{escape(name)}"' if name else ""
        headers = "".join(_html_header(column, sticky=column is naming) for column in columns)
        head = f'<div class="scroll folded"><table{table_id}><thead><tr>{headers}</tr></thead><tbody>\n'
        yield Markup(head)  # noqa: S704 - every value in it is escaped
        for i, row in enumerate(rows):
            cells = "".join(_html_cell(column, row, sticky=column is naming) for column in columns)
            yield Markup("\n" * (i > 0) + f"<tr>{cells}</tr>")  # noqa: S704 - every value in it is escaped
        yield Markup("</tbody></table></div>")


NO_ORDER: tuple[Any, ...] = (0,)
"""The position of rows without a value: the first."""


def _order(value: object = None) -> tuple[Any, ...]:
    """Return what orders values as people do: numbers by size, also those in texts; no value is the least."""
    if value is None or value == "":
        return NO_ORDER
    if isinstance(value, int | float):
        return 1, value
    words = re.split(r"([0-9]+)", str(value))
    return 2, [int(word) if i % 2 else word for i, word in enumerate(words)]


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = sanitize(str(value))
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA_STARTS) else text


def _html_header(column: Column[Any], *, sticky: bool) -> str:
    return f'<th{header_attributes(column, sticky=sticky)}><button type="button">{escape(column.header)}</button></th>'


def header_attributes(column: Column[Any], *, sticky: bool) -> str:
    """Return the class of a header, as HTML with a space before it; "" if it has none."""
    classes = " ".join(filter(None, ("n" * column.numeric, "sticky" * sticky)))
    return f' class="{classes}"' if classes else ""


def _html_cell(column: Column[Row], row: Row, *, sticky: bool) -> str:
    """Return one cell. `Markup.format` would take five times as long as plain strings."""
    text = column.text(row)
    layout = "n" if column.numeric else "code" if column.code else "long" if column.narrow or _is_long(text) else ""
    classes = cell_classes(column, row, layout)
    attributes = f' class="{escape(classes)}"' if classes else ""
    if column.numeric:
        attributes += _sort_attribute(column.value(row), text)
    content = html_words(text, column.word_css(row)) if column.code else escape(text)
    if sticky:
        return f'<th scope="row"{attributes}><span>{content}</span></th>'
    return f"<td{attributes}>{fold_text(content) if is_folded(column, text) else content}</td>"


def _sort_attribute(value: object, text: str) -> str:
    """Return by what a number is sorted, as HTML with a space before it; "" if the text is that number.

    Without quotes, as the report on a large cluster has a hundred thousand of them.
    """
    if value is None:
        return " data-v"
    return f" data-v={escape(value)}" if str(value) != text else ""


def cell_classes(column: Column[Row], row: Row, layout: str) -> str:
    """Return the CSS classes of a cell, one of them for how it is laid out; "" if it has none."""
    own = column.css(row) if column.css else ""
    return " ".join(filter(None, dict.fromkeys((layout, "narrow" * column.narrow, own))))


def is_folded(column: Column[Any], text: str) -> bool:
    """Return whether a cell takes more than two lines, so that HTML shows the rest when it is clicked."""
    return len(text) > (MAX_NARROW_CELL_LETTERS if column.narrow or column.code else MAX_CELL_LETTERS)


def fold_text(content: str) -> str:
    """Return content of which two lines are seen until it is opened; screen readers, search and filters have it all."""
    return f"<details><summary>{content}</summary></details>"


def html_words(text: str, styles: Mapping[str, str]) -> str:
    """Return words as code, those with a style in it."""
    each = ((escape(word), styles.get(word, "")) for word in re.split(r"[ ,]+", text))
    return " ".join(f'<code class="{css}">{word}</code>' if css else f"<code>{word}</code>" for word, css in each)


def _is_long(text: str) -> bool:
    """Return whether a cell is set in several lines: sentences, and names that are longer than a column can be."""
    return len(text) > (MAX_SENTENCE_LETTERS if " " in text else MAX_NAME_LETTERS)
