"""Builder: parser events to plain data with places, with a bound on everything.

libyaml's own composer is recursive and expands aliases without counting; this one keeps its own stack,
so depth is a number to compare and an alias costs what it stands for.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from yaml import events

from webhook.documents.decode import SizeBounds
from webhook.documents.document import Document, Mark, Positions, PositionTree, start_mark
from webhook.documents.yaml_scalars import Scalar, is_ambiguous, is_finite, parse_like_kubectl, parse_yaml12
from webhook.errors import DocumentError, SourceLocation, shorten_text

MERGE = "<<"
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", f"{_TAG}str")
_VALUE_TAGS = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null")
_SHAPE_TAGS = (f"{_TAG}map", f"{_TAG}seq")


class AnchoredValue(NamedTuple):
    """What an anchor stands for, and how many values that is."""

    value: Any
    positions: Positions
    weight: int


class OpenCollection:
    """A map or list that is being filled."""

    __slots__ = ("anchor", "data", "key", "merge_sources", "positions", "weight")

    def __init__(self, data: Any, branch: PositionTree, anchor: str | None) -> None:
        self.data = data
        self.positions = branch
        self.anchor = anchor
        self.key: str | None = None
        self.merge_sources: list[AnchoredValue] = []
        self.weight = 1


class DocumentBuilder:
    """Takes the events of one file, and gives the documents as they are finished."""

    def __init__(self, file: str, bounds: SizeBounds, *, aliases: bool) -> None:
        self._documents: list[Document] = []
        self._file = file
        self._lines_above = self._columns_left = 0
        self._bounds = bounds
        self._aliases = aliases
        self._frames: list[OpenCollection] = []
        self._anchors: dict[str, AnchoredValue | None] = {}
        self._values = 0
        self._expanded = 0
        self._steps = {
            events.ScalarEvent: self._scalar,
            events.AliasEvent: self._alias,
            events.MappingStartEvent: self._open_map,
            events.SequenceStartEvent: self._open_list,
            events.MappingEndEvent: self._close,
            events.SequenceEndEvent: self._close,
            events.DocumentStartEvent: self._start,
        }

    def feed(self, event: Any) -> None:
        """Take one event.

        Raises:
            DocumentError: it is something that we do not accept.
        """
        step = self._steps.get(type(event))
        if step is not None:
            mark = event.start_mark
            left = 0 if mark.line else self._columns_left
            step(event, (mark.line + self._lines_above + 1, mark.column + left + 1))

    def start_at(self, above: int, left: int = 0) -> None:
        """Forget what is open: events come of a text with so many lines above, and characters left of it."""
        self._lines_above, self._columns_left = above, left
        self._frames = []

    def take_documents(self) -> list[Document]:
        """The documents finished since this was last asked. Empty ones are left out, as kubectl does."""
        if not self._documents:
            return self._documents
        found, self._documents = self._documents, []
        return found

    def _start(self, _event: Any, _mark: Mark) -> None:
        self._anchors = {}

    def _scalar(self, event: Any, mark: Mark) -> None:
        frame = self._frames[-1] if self._frames else None
        is_plain = event.style == "" or event.style is None
        is_key = frame is not None and frame.key is None and isinstance(frame.data, dict)
        value = self._value(event, mark) if is_plain or event.tag else event.value
        if event.anchor:
            self._anchors[event.anchor] = AnchoredValue(value, mark, 1 + len(event.value) // 64)
        if frame is not None and is_key:
            self._take_key(frame, event.value, mark, merge=is_plain and event.value == MERGE)
            return
        self._add(value, mark, 1)

    def _value(self, event: Any, mark: Mark) -> Scalar:
        text: str = event.value
        if event.tag:
            self._check_tag(event.tag, mark, (*_TEXT_TAGS, *_VALUE_TAGS))
            if event.tag in _TEXT_TAGS:
                return text
        if not self._aliases:
            return self._strict_value(text, mark)
        value = parse_like_kubectl(text)
        if not is_finite(value):
            self._reject(mark, f"must be a finite number or text, found {shorten_text(text)}. Put text in quotes")
        return value

    def _strict_value(self, text: str, mark: Mark) -> Scalar:
        value = parse_yaml12(text)
        if is_ambiguous(text) or not is_finite(value):
            self._reject_ambiguous(mark, text)
        return value

    def _reject_ambiguous(self, mark: Mark, text: str) -> NoReturn:
        self._reject(
            mark,
            f"must be clear to every YAML reader, found {shorten_text(text)}, which some read as a number or as "
            f'true or false. Write "{shorten_text(text)}" in quotes for text, or a plain number',
        )

    def _take_key(self, frame: OpenCollection, key: str, mark: Mark, *, merge: bool) -> None:
        if merge and not self._aliases:
            self._reject(mark, "must spell every field out, found a merge key (<<). Write the fields themselves")
        first = frame.positions.keys.get(key)
        if first is not None:
            self._reject(
                mark,
                f"must have each key once, found {shorten_text(repr(key))} again (first at line {first[0]}, "
                f"column {first[1]}). Remove one of the two",
            )
        frame.key = key
        frame.positions.keys[key] = mark

    def _alias(self, event: Any, mark: Mark) -> None:
        name = shorten_text(event.anchor)
        if not self._aliases:
            self._reject(mark, f"must spell values out, found the alias *{name}. Write the value itself")
        if event.anchor not in self._anchors:
            self._reject(mark, f"must name an anchor above it, found *{name}. Write the value itself")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            self._reject(mark, f"must not stand inside itself, found *{name}. Write the value itself")
        frame = self._frames[-1] if self._frames else None
        if frame is not None and frame.key is None and isinstance(frame.data, dict):
            self._reject(mark, "must have text as a key, found an alias. Write the key itself")
        self._expanded += anchored.weight
        if self._expanded > self._bounds.expansion:
            self._reject(mark, f"must let aliases stand for at most {self._bounds.expansion} values. Use fewer")
        self._add(anchored.value, anchored.positions, anchored.weight)

    def _open_map(self, event: Any, mark: Mark) -> None:
        self._open(OpenCollection({}, PositionTree(mark, {}, {}), event.anchor), event, mark)

    def _open_list(self, event: Any, mark: Mark) -> None:
        self._open(OpenCollection([], PositionTree(mark, {}, []), event.anchor), event, mark)

    def _open(self, frame: OpenCollection, event: Any, mark: Mark) -> None:
        if event.tag:
            self._check_tag(event.tag, mark, _SHAPE_TAGS)
        if self._frames and self._frames[-1].key is None and isinstance(self._frames[-1].data, dict):
            self._reject(mark, "must have text as a key, found a map or a list. Put text with { or [ in quotes")
        if len(self._frames) >= self._bounds.depth:
            self._reject(mark, f"must be at most {self._bounds.depth} levels deep. Write it flatter")
        if frame.anchor:
            self._anchors[frame.anchor] = None
        self._frames.append(frame)

    def _close(self, _event: Any, _mark: Mark) -> None:
        frame = self._frames.pop()
        for anchored in frame.merge_sources:
            self._merge(frame, anchored)
        if frame.anchor:
            self._anchors[frame.anchor] = AnchoredValue(frame.data, frame.positions, frame.weight)
        self._add(frame.data, frame.positions, frame.weight)

    def _add(self, value: Any, spot: Positions, weight: int) -> None:
        self._values += 1
        if self._values > self._bounds.values:
            self._reject(start_mark(spot), f"must hold at most {self._bounds.values} values. Split the file")
        if not self._frames:
            if value is not None:
                self._documents.append(Document(value, self._file, spot))
            return
        frame = self._frames[-1]
        frame.weight += weight
        if isinstance(frame.data, list):
            frame.data.append(value)
            frame.positions.members.append(spot)
            return
        self._set_key(frame, value, spot)

    def _set_key(self, frame: OpenCollection, value: Any, spot: Positions) -> None:
        key, frame.key = frame.key, None
        assert key is not None
        if key == MERGE and self._aliases:
            frame.merge_sources.append(AnchoredValue(value, spot, 0))
            return
        frame.data[key] = value
        frame.positions.members[key] = spot

    def _merge(self, frame: OpenCollection, source: AnchoredValue) -> None:
        """YAML 1.1's merge key: the map's own keys win over those of the maps it names, earlier over later."""
        if isinstance(source.value, list) and isinstance(source.positions, PositionTree):
            members: Any = source.positions.members
            for value, spot in zip(source.value, members, strict=True):
                self._merge(frame, AnchoredValue(value, spot, 0))
            return
        if not isinstance(source.value, dict) or not isinstance(source.positions, PositionTree):
            self._reject(
                start_mark(source.positions), "must merge maps, found another value after <<. Write <<: *name of a map"
            )
        places: Any = source.positions.members
        for key, value in source.value.items():
            if key not in frame.data:
                frame.data[key] = value
                frame.positions.members[key] = places[key]
                frame.positions.keys.setdefault(key, source.positions.keys[key])

    def _check_tag(self, tag: str, mark: Mark, known: tuple[str, ...]) -> None:
        if not self._aliases or tag not in known:
            short = shorten_text(tag.replace(_TAG, "!!"))
            self._reject(mark, f"must have no tags, found {short}. Write the plain value")

    def _reject(self, mark: Mark, sentence: str) -> NoReturn:
        raise DocumentError(SourceLocation(self._file, *mark), sentence)
