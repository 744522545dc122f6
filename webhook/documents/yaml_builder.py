"""Build documents with positions from YAML parser events, within size bounds.

libyaml's composer is recursive and expands aliases without counting. This builder keeps its own stack, so depth is
bounded, and an alias counts as many values as it expands to.

Manifests are read as kubectl reads them: `sigs.k8s.io/yaml`, which accepts YAML 1.1 words (`yes` is true) and octals
(`017` is 15) as well as YAML 1.2. Policies are read as YAML 1.2; spellings that the two versions read differently
are rejected as ambiguous.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

import msgspec
from yaml import events

from webhook.documents.document import Document, Mark, Positions, PositionTree, SizeBounds, start_mark
from webhook.errors import DocumentError, SourceLocation, quote_text, shorten_text
from webhook.model.field_paths import format_path

Scalar = str | int | float | bool | None

MAX_SCALAR_LENGTH = 64
"""Longer scalars are text, which bounds the time to parse a number."""

MAX_PLACE_LENGTH = 200
"""Characters of an object's name, and of a field, in a message."""

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_YAML11_WORDS: dict[str, bool] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z", re.ASCII)
_RADIX_INTEGER = re.compile(r"([-+]?)0([xob])([0-9a-fA-F]+)\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_YAML11_OCTAL = re.compile(r"([-+]?)0([0-7]+)\Z", re.ASCII)
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z", re.ASCII)
_UNDERSCORED = re.compile(r"[-+]?(?:0[xob])?[0-9a-fA-F.][0-9a-fA-F_.]*\Z", re.ASCII)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+\Z", re.ASCII)
MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", f"{_TAG}str")
_VALUE_TAGS = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null")
_SHAPE_TAGS = (f"{_TAG}map", f"{_TAG}seq")


class AnchoredValue(NamedTuple):
    """The value of an anchor, and how many values it contains."""

    value: Any
    positions: Positions
    weight: int


class OpenCollection(msgspec.Struct):
    """A map or list that is being parsed."""

    data: Any
    positions: PositionTree
    anchor: str | None
    key: str | None = None
    merge_sources: list[AnchoredValue] = []
    weight: int = 1


class DocumentBuilder:
    """Consumes the parser events of one file and produces its documents."""

    def __init__(self, file: str, bounds: SizeBounds, *, aliases: bool) -> None:
        self._documents: list[Document] = []
        self._file = file
        self._first_line = self._first_column = 0
        self._bounds = bounds
        self._aliases = aliases
        self._open_collections: list[OpenCollection] = []
        self._anchors: dict[str, AnchoredValue | None] = {}
        self._values = 0
        self._expanded = 0

    def feed(self, event: Any) -> None:
        """Process one event.

        Raises:
            DocumentError: The event is not allowed here.
        """
        step = self._STEPS.get(type(event))
        if step is not None:
            mark = event.start_mark
            columns = 0 if mark.line else self._first_column
            step(self, event, (mark.line + self._first_line + 1, mark.column + columns + 1))

    def start_at(self, lines: int, columns: int = 0) -> None:
        """Start over: later events belong to a text that begins after these lines and columns of the file."""
        self._first_line, self._first_column = lines, columns
        self._open_collections = []

    def take_documents(self) -> list[Document]:
        """Return the documents completed since the last call. Empty ones are omitted, as kubectl does."""
        if not self._documents:
            return self._documents
        found, self._documents = self._documents, []
        return found

    def _start(self, _event: Any, _mark: Mark) -> None:
        self._anchors = {}

    def _scalar(self, event: Any, mark: Mark) -> None:
        is_plain = event.style == "" or event.style is None
        value = self._value(event, mark) if is_plain or event.tag else event.value
        if event.anchor:
            self._anchors[event.anchor] = AnchoredValue(value, mark, 1 + len(event.value) // 64)
        if self._expects_key():
            self._read_key(event.value, mark, merge=is_plain and event.value == MERGE)
        else:
            self._add(value, mark, 1)

    def _expects_key(self) -> bool:
        if not self._open_collections:
            return False
        collection = self._open_collections[-1]
        return collection.key is None and isinstance(collection.data, dict)

    def _value(self, event: Any, mark: Mark) -> Scalar:
        text: str = event.value
        if event.tag:
            self._check_tag(event.tag, mark, (*_TEXT_TAGS, *_VALUE_TAGS))
            if event.tag in _TEXT_TAGS:
                return text
        if not self._aliases:
            value = parse_yaml12(text)
            if is_ambiguous(text) or not is_finite(value):
                shown = shorten_text(text)
                self._reject(
                    mark,
                    f"must be unambiguous, found {shown}, which some parsers read as a number or as true or false. "
                    f'Write "{shown}" in quotes for text, or a plain number',
                )
            return value
        value = parse_like_kubectl(text)
        if not is_finite(value):
            must = f"must be a finite number or text, found {shorten_text(text)}. Put text in quotes"
            self._reject(mark, f"{self._describe_place()}{must}")
        return value

    def _describe_place(self) -> str:
        """Return the object and the field of the value that comes next; of the object only what stands before it."""
        steps: list[str | int] = []
        owner = ""
        for each in self._open_collections:
            metadata = each.data.get("metadata") if isinstance(each.data, dict) else None
            if isinstance(metadata, dict) and isinstance(kind := each.data.get("kind"), str):
                names = [str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)]
                words = shorten_text(f"{kind} {'/'.join(names)}".strip(), MAX_PLACE_LENGTH)
                owner, steps = f"{words if words.isprintable() else quote_text(words)}: ", []
            steps.append(len(each.data) if isinstance(each.data, list) else each.key or "")
        return f"{owner}{shorten_text(format_path(tuple(steps)), MAX_PLACE_LENGTH)}: " if steps else owner

    def _read_key(self, key: str, mark: Mark, *, merge: bool) -> None:
        collection = self._open_collections[-1]
        if merge and not self._aliases:
            self._reject(mark, "must not use merge keys, found <<. Write the fields themselves")
        first = collection.positions.keys.get(key)
        if first is not None:
            self._reject(
                mark,
                f"must have each key once, found {quote_text(key)} again (first at line {first[0]}, "
                f"column {first[1]}). Remove one of the two",
            )
        collection.key = key
        collection.positions.keys[key] = mark

    def _alias(self, event: Any, mark: Mark) -> None:
        name = shorten_text(event.anchor)
        if not self._aliases:
            self._reject(mark, f"must not use aliases, found *{name}. Write the value itself")
        if event.anchor not in self._anchors:
            self._reject(mark, f"must refer to an anchor above it, found *{name}. Write the value itself")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            self._reject(mark, f"must not contain itself, found *{name}. Write the value itself")
        if self._expects_key():
            self._reject(mark, "must have text as key, found an alias. Write the key itself")
        self._expanded += anchored.weight
        if self._expanded > self._bounds.expansion:
            self._reject(mark, f"must expand aliases to at most {self._bounds.expansion} values. Use fewer")
        self._add(anchored.value, anchored.positions, anchored.weight)

    def _open(self, event: Any, mark: Mark) -> None:
        data: Any = {} if isinstance(event, events.MappingStartEvent) else []
        collection = OpenCollection(data, PositionTree(mark, {}, type(data)()), event.anchor)
        if event.tag:
            self._check_tag(event.tag, mark, _SHAPE_TAGS)
        if self._expects_key():
            self._reject(mark, "must have text as key, found a map or a list. Put text with { or [ in quotes")
        if len(self._open_collections) >= self._bounds.depth:
            self._reject(mark, f"must be at most {self._bounds.depth} levels deep. Reduce the nesting")
        if collection.anchor:
            self._anchors[collection.anchor] = None
        self._open_collections.append(collection)

    def _close(self, _event: Any, _mark: Mark) -> None:
        collection = self._open_collections.pop()
        for anchored in collection.merge_sources:
            self._merge(collection, anchored)
        if collection.anchor:
            self._anchors[collection.anchor] = AnchoredValue(collection.data, collection.positions, collection.weight)
        self._add(collection.data, collection.positions, collection.weight)

    def _add(self, value: Any, positions: Positions, weight: int) -> None:
        self._values += 1
        if self._values > self._bounds.values:
            self._reject(start_mark(positions), f"must hold at most {self._bounds.values} values. Split the file")
        if not self._open_collections:
            if value is not None:
                self._documents.append(Document(value, self._file, positions))
            return
        collection = self._open_collections[-1]
        collection.weight += weight
        if isinstance(collection.data, list):
            collection.data.append(value)
            collection.positions.members.append(positions)
            return
        key, collection.key = collection.key, None
        if key == MERGE and self._aliases:
            collection.merge_sources.append(AnchoredValue(value, positions, 0))
        else:
            collection.data[key] = value
            collection.positions.members[key] = positions

    def _merge(self, collection: OpenCollection, source: AnchoredValue) -> None:
        """Apply a YAML 1.1 merge key: own keys take precedence over merged ones, earlier maps over later ones."""
        if isinstance(source.value, list) and isinstance(source.positions, PositionTree):
            members: Any = source.positions.members
            for value, positions in zip(source.value, members, strict=True):
                self._merge(collection, AnchoredValue(value, positions, 0))
            return
        if not isinstance(source.value, dict) or not isinstance(source.positions, PositionTree):
            self._reject(
                start_mark(source.positions),
                "must merge a map, found another value after <<. Write <<: *anchor of a map",
            )
        merged_positions: Any = source.positions.members
        for key, value in source.value.items():
            if key not in collection.data:
                collection.data[key] = value
                collection.positions.members[key] = merged_positions[key]
                collection.positions.keys.setdefault(key, source.positions.keys[key])

    def _check_tag(self, tag: str, mark: Mark, known: tuple[str, ...]) -> None:
        if not self._aliases or tag not in known:
            short = shorten_text(tag.replace(_TAG, "!!"))
            self._reject(mark, f"must have no tags, found {short}. Write the plain value")

    def _reject(self, mark: Mark, message: str) -> NoReturn:
        raise DocumentError(SourceLocation(self._file, *mark), message)

    _STEPS: ClassVar[Mapping[type, Callable[[DocumentBuilder, Any, Mark], None]]] = {
        events.ScalarEvent: _scalar,
        events.AliasEvent: _alias,
        events.MappingStartEvent: _open,
        events.SequenceStartEvent: _open,
        events.MappingEndEvent: _close,
        events.SequenceEndEvent: _close,
        events.DocumentStartEvent: _start,
    }


def is_ambiguous(text: str) -> bool:
    """Return whether YAML 1.1 and 1.2 read a plain scalar differently, or it is not a finite number.

    >>> [is_ambiguous(text) for text in ("no", "017", "1_000", "12:30:45", ".inf", "nvidia")]
    [True, True, True, True, True, False]
    """
    if len(text) > MAX_SCALAR_LENGTH:
        return False
    if text in _YAML11_WORDS or _NOT_FINITE.match(text) or _LEADING_ZERO.match(text) or _SEXAGESIMAL.match(text):
        return True
    return "_" in text and text[0] in "+-.0123456789" and _UNDERSCORED.match(text) is not None


def is_finite(value: Scalar) -> bool:
    """Return False for infinities and NaN, which JSON and Kubernetes do not support."""
    return not isinstance(value, float) or math.isfinite(value)


def parse_yaml12(text: str) -> Scalar:
    """Parse a plain scalar with the YAML 1.2 core schema. Times and dates remain text.

    >>> [parse_yaml12(text) for text in ("8", "0x10", "1e3", "true", "2026-12-01", "no")]
    [8, 16, 1000.0, True, '2026-12-01', 'no']
    """
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if not (first.isdigit() or first in "+-.") or len(text) > MAX_SCALAR_LENGTH:
        return text
    if _INTEGER.match(text):
        return bound_integer(int(text))
    if _FLOAT.match(text):
        return float(text)
    return _parse_radix_integer(text)


def bound_integer(number: int) -> int | float:
    """Return an integer beyond 64 bits as a float, as kubectl and the API server read it."""
    return number if -(1 << 63) <= number < 1 << 64 else float(number)


def _parse_radix_integer(text: str) -> Scalar:
    match = _RADIX_INTEGER.match(text)
    if match is None:
        return text
    sign, letter, digits = match.groups()
    try:
        return bound_integer(int(sign + digits, {"x": 16, "o": 8, "b": 2}[letter]))
    except ValueError:
        return text


def parse_like_kubectl(text: str) -> Scalar:
    """Parse a plain scalar as kubectl does.

    >>> [parse_like_kubectl(text) for text in ("yes", "017", "1_000", "12:30:45")]
    [True, 15, 1000, '12:30:45']
    """
    if text in _YAML11_WORDS:
        return _YAML11_WORDS[text]
    if _NOT_FINITE.match(text):
        return math.nan
    if len(text) > MAX_SCALAR_LENGTH or not text or text[0] not in "+-.0123456789":
        return parse_yaml12(text)
    bare = text.replace("_", "")
    octal = _YAML11_OCTAL.match(bare)
    if octal is not None:
        return bound_integer(int("".join(octal.groups()), 8))
    value = parse_yaml12(bare) if bare else text
    return text if isinstance(value, str) else value
