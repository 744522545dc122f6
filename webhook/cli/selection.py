"""Selects objects as -n, -A and -l of kubectl do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from webhook.audit.evaluate import written_namespace
from webhook.audit.object_files import SkippedDocument, SourceObject
from webhook.cli.output import exit_with_error, print_note
from webhook.model.field_paths import map_at
from webhook.model.pod_groups import LabelRequirements, satisfies
from webhook.model.pods import DEFAULT_NAMESPACE, NodeSelectorRequirement
from webhook.model.resource_names import is_qualified_name
from webhook.report.text import pluralize, sanitize

OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn", ">": "Gt", "<": "Lt"}
LISTS = ("in", "notin")
EXAMPLE = "Write app=train,tier in (a,b),!canary"

_TOKEN = re.compile(r"\s*(==|!=|[=!(),<>]|[^\s=!(),<>]+|$)")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}\Z", re.ASCII)


class ObjectSelection(NamedTuple):
    """Namespace and labels of the selected objects; by default all.

    Attributes:
        namespace: "" for all.
        labels: What the labels must satisfy.
        selector: The same as text.
    """

    namespace: str = ""
    labels: LabelRequirements = ()
    selector: str = ""

    @property
    def is_partial(self) -> bool:
        """True if it may leave objects out."""
        return bool(self.namespace or self.labels)

    def selects(self, data: Mapping[str, Any]) -> bool:
        """Return whether it selects an object."""
        namespace = written_namespace(dict(data)) or DEFAULT_NAMESPACE
        return self.namespace in ("", namespace) and self.selects_labels(map_at(data, "metadata").get("labels"))

    def selects_labels(self, labels: object) -> bool:
        """Return whether it selects an object with these labels."""
        found = labels if isinstance(labels, dict) else {}
        return all(_satisfies(one, found) for one in self.labels)

    def choose(self, documents: Iterable[SourceObject | SkippedDocument]) -> Iterator[SourceObject | SkippedDocument]:
        """Yield the selected objects, and what cannot be read."""
        return (each for each in documents if isinstance(each, SkippedDocument) or self.selects(each.data))

    def __str__(self) -> str:
        words = [f"in namespace {self.namespace}"] * bool(self.namespace)
        return " ".join([*words, *[f"with labels {self.selector}"] * bool(self.labels)])

    def note_nothing(self, kind: str, namespaces: Collection[str] = ()) -> None:
        """Print that it selects nothing of a kind, and that its namespace is none of those of the cluster, if known."""
        is_missing = bool(self.namespace and namespaces) and self.namespace not in namespaces
        print_note(sanitize(f"note: no {kind} {self}{'; the namespace does not exist' * is_missing}"))

    def note_none_of(self, documents: Iterable[SourceObject | SkippedDocument]) -> None:
        """Print that it selects none of some objects, if it does not."""
        objects = [each.data for each in documents if isinstance(each, SourceObject)]
        if objects and not any(map(self.selects, objects)):
            print_note(sanitize(f"note: none of {pluralize(len(objects), 'object')} {self}"))


EVERYTHING = ObjectSelection()
ALL_NAMESPACES = ""


def choose_namespace(namespace: str | None, every: bool) -> str | None:
    """Return the namespace of -n, ALL_NAMESPACES for -A, or None for the default one."""
    return ALL_NAMESPACES if every else namespace or None


def select_objects(namespace: str | None = None, every: bool = False, selector: str = "") -> ObjectSelection:
    """Return what -n, -A and -l select; -A overrides -n. Exits if a selector is invalid."""
    try:
        labels = parse_label_selector(selector)
    except ValueError as error:
        exit_with_error(f"-l: {error}")
    return ObjectSelection("" if every else namespace or "", labels, selector)


def parse_label_selector(text: str) -> LabelRequirements:
    """Return the requirements of a label selector as kubectl and the API server read it.

    >>> parse_label_selector("tier in (b, a)")[0].values
    ('b', 'a')

    Raises:
        ValueError: It is invalid.
    """
    tokens = [found[1] for found in _TOKEN.finditer(text) if found[1]]
    requirements: list[NodeSelectorRequirement] = []
    position = 0
    while position < len(tokens) or requirements:
        requirement, position = _parse_requirement(tokens, position, text)
        requirements.append(requirement)
        if position == len(tokens):
            break
        if tokens[position] != ",":
            raise ValueError(f"must have a comma before {tokens[position]!r}, found {text!r}. {EXAMPLE}")
        position += 1
    return tuple(requirements)


def _parse_requirement(tokens: list[str], position: int, text: str) -> tuple[NodeSelectorRequirement, int]:
    """Return one requirement, and the position after it."""
    rest = tokens[position:]
    negated = rest[:1] == ["!"]
    key, *rest = rest[negated:] or [""]
    position += negated + 1
    if not is_qualified_name(key):
        raise ValueError(f"must have label keys such as app or example.com/team, found {key!r} in {text!r}. {EXAMPLE}")
    if negated or not rest or rest[0] == ",":
        return NodeSelectorRequirement(key, "DoesNotExist" if negated else "Exists"), position
    values, length = _parse_values(rest, text)
    return NodeSelectorRequirement(key, OPERATORS[rest[0]], values), position + length


def _parse_values(rest: list[str], text: str) -> tuple[tuple[str, ...], int]:
    """Return the values after an operator, and the number of tokens with it."""
    operator = rest[0]
    if operator not in OPERATORS:
        raise ValueError(
            f"must have one of {' '.join(OPERATORS)} after a key, found {operator!r} in {text!r}. {EXAMPLE}"
        )
    if operator not in LISTS:
        value = rest[1] if rest[1:] and rest[1] not in (",", "=", "==", "!=", "!", "(", ")", "<", ">") else ""
        return (_checked_value(operator, value, text),), 1 + bool(value)
    if rest[1:2] != ["("] or ")" not in rest:
        raise ValueError(f"must have values in brackets after {operator}, found {text!r}. {EXAMPLE}")
    end = rest.index(")")
    values = " ".join(rest[2:end]).split(",")
    return tuple(_checked_value(operator, value.strip(), text) for value in values), end + 1


def _checked_value(operator: str, value: str, text: str) -> str:
    pattern, must = (_NUMBER, "numbers after < and >") if operator in "<>" else (_VALUE, "label values")
    if not pattern.match(value):
        raise ValueError(f"must have {must}, found {value!r} in {text!r}. {EXAMPLE}")
    return value


def _satisfies(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    if one.operator not in ("Gt", "Lt"):
        return satisfies(one, labels)
    value, [bound] = str(labels.get(one.key, "")), one.values
    if not _NUMBER.match(value):
        return False
    return int(value) > int(bound) if one.operator == "Gt" else int(value) < int(bound)
