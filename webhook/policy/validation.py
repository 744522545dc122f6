"""Validate documents against their models.

Errors say where, what must hold, what was found and what to write. Pydantic reports paths, and the document has their
lines and columns.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from webhook.documents.document import Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, quote_text, shorten_text
from webhook.model.field_paths import FieldPath, format_path
from webhook.policy.written.values import SPEC_ERROR, SpecModel
from webhook.well_known import API_VERSION, APP_NAME, GROUP

MAX_LISTED_CHOICES = 8
MAX_LIST_LENGTH = 60
MIN_PREFIX_LENGTH = 3
"""Minimum length of a prefix that suggests a longer word, such as "desc" for "description"."""

UNKNOWN_FIELD, BAD_VALUE = "GPU-P102", "GPU-P103"

_FIELD_EXAMPLES = {
    "memory": "memory: 8Gi",
    "namespaces": "namespaces: [team-a]",
    "reason": 'reason: "INC-4711: why it is needed"',
    "expirationTime": 'expirationTime: "2027-01-01T00:00:00Z"',
    "codes": "codes: [GPU-S201]",
    "match": "match: {namespaces: [team-a]}",
    "policyName": "policyName: the name of a policy",
    "resource": "resource: nvidia.com/gpu",
    "gpuMilli": "gpuMilli: 8000",
    "operator": "operator: In",
    "paths": "paths: [spec.template]",
    "metadata": "metadata: {name: my-policy}",
    "expect": "expect: {allowed: true}",
    "allowed": "allowed: true or allowed: false",
    "pod": "pod: pods/one-gpu.yaml",
    "policies": "policies: [../my-policy.yaml]",
}
_METADATA_EXAMPLES = {
    "GPUPriceList": "metadata: {name: my-prices}",
    "GPUPolicyException": "metadata: {name: my-exception}",
}
"""Examples of `metadata` for kinds other than GPUPolicy."""

_SHAPE_MESSAGES = {
    "model_type": ("a map of fields", "one field per line, or remove it"),
    "model_attributes_type": ("a map of fields", "one field per line, or remove it"),
    "dict_type": ("a map of names to values", "name: value, one per line"),
    "tuple_type": ("a list", "[one, two]"),
    "int_type": ("a whole number", "a number such as 2, without quotes"),
    "bool_type": ("true or false", "true or false, without quotes"),
    "union_tag_invalid": ("auto or a list", "auto"),
}

UNREADABLE = "GPU-P101"
AnySpecModel = TypeVar("AnySpecModel", bound=SpecModel)

_SERVER_FIELDS = ("metadata", "status")
"""Fields where `kubectl get -o yaml` prints nulls."""


OTHER_OWN_KINDS = ("GPUPriceList", "GPUNode")
"""Kinds of the API group that are neither policies nor tests of them."""

KUSTOMIZATION_FILES = ("kustomization.yaml", "kustomization.yml")
"""Names of files that need no kind."""


class PolicyDocuments(NamedTuple):
    """The documents of a policy file, and a sentence for each that belongs to another program."""

    documents: tuple[Document, ...]
    skipped: tuple[str, ...]


def read_policy_documents(content: str | bytes, file: str) -> PolicyDocuments:
    """Read a policy file. Objects of other programs, such as a ConfigMap or a kustomization, are skipped.

    Raises:
        DocumentError: The content is not accepted, and contains more than objects of other programs.
    """
    try:
        documents = read_documents(content, file)
    except DocumentError:
        if not (documents := _read_foreign_documents(content, file)):
            raise
    skipped = tuple(
        f"{document.locate()}: skipped: {kind} is not a policy"
        for document in documents
        if (kind := _foreign_kind(document))
    )
    return PolicyDocuments(tuple(each for each in documents if not _foreign_kind(each)), skipped)


def _read_foreign_documents(content: str | bytes, file: str) -> tuple[Document, ...]:
    """Return the documents of a file without policies, which may use more of YAML; () if it is not one."""
    try:
        documents = read_documents(content, file, aliases=True)
    except DocumentError:
        return ()
    return documents if all(map(_foreign_kind, documents)) else ()


def _foreign_kind(document: Document) -> str:
    """Return the kind of an object of another program; "" for anything that may be meant as a policy."""
    data = document.data
    if not isinstance(data, dict):
        return ""
    version, kind = data.get("apiVersion"), data.get("kind")
    if "kind" not in data and document.file.rpartition("/")[2] in KUSTOMIZATION_FILES:
        return "kustomization"
    if not isinstance(version, str) or not isinstance(kind, str):
        return ""
    if version.startswith(GROUP):
        return kind if version == API_VERSION and kind in OTHER_OWN_KINDS else ""
    meant_as_policy = APP_NAME in version.lower() or kind.lower().startswith("gpupolicy") or kind.endswith("List")
    return "" if meant_as_policy else shorten_text(kind)


def document_kind(document: Document) -> str:
    """Return the kind of a document, or "" if it has none or belongs to another API."""
    data = document.data
    if not isinstance(data, dict) or data.get("apiVersion") != API_VERSION:
        return ""
    kind = data.get("kind")
    return kind if isinstance(kind, str) else ""


def kind_error(document: Document, kinds: Sequence[str]) -> PolicyFileError | None:
    """Return an error if a document is none of these kinds."""
    if document_kind(document) in kinds:
        return None
    data = document.data
    if not isinstance(data, dict):
        return value_error(
            document, (), "be a map with apiVersion and kind", f"apiVersion: {API_VERSION}", code=UNREADABLE
        )
    if data.get("apiVersion") != API_VERSION:
        return _header_error(document, "apiVersion", f"be {API_VERSION}", API_VERSION)
    likely = closest_word(data.get("kind"), kinds) or kinds[0]
    return _header_error(document, "kind", f"be a kind of {GROUP}: {', '.join(kinds)}", likely)


def _header_error(document: Document, field: str, must: str, write: str) -> PolicyFileError:
    write = f"{field}: {write}"
    if field in document.data:
        return value_error(document, (field,), must, write, code=UNREADABLE)
    return PolicyFileError(document.locate(), f"{field}: must {must}, found nothing. Write {write}", UNREADABLE)


MAX_ERRORS = 50
"""Listed errors of one document. Each looks for the closest known word, which takes up to 0.3 ms."""


def validate_document(
    document: Document, model: type[AnySpecModel], errors: list[PolicyFileError]
) -> AnySpecModel | None:
    """Validate a document, append its errors, and return the model if there are none."""
    body = {key: value for key, value in document.data.items() if key not in _SERVER_FIELDS}
    paths = islice(_null_paths(body, ()), MAX_ERRORS)
    new = [value_error(document, path, "have a value", "a value, or remove the key") for path in paths]
    more = 0
    validated = None
    try:
        validated = model.model_validate(document.data)
    except ValidationError as invalid:
        known = {error.location for error in new}
        # A list whose entries are invalid also counts as too short.
        details = [one for one in invalid.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
        converted = [_validation_error(detail, document, model) for detail in details[:MAX_ERRORS]]
        new += [error for error in converted if error.location not in known]
        more = len(details) - len(converted)
    errors += sorted(new, key=lambda error: (error.location.line, error.location.column))
    if more:
        errors.append(PolicyFileError(document.locate(()), f"and {more} more errors, not listed", BAD_VALUE))
    return None if new else validated


def _null_paths(data: Any, path: FieldPath) -> Iterator[FieldPath]:
    """Yield the paths of null values: an empty section would be disabled silently."""
    if data is None:
        yield path
        return
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in members:
        yield from _null_paths(value, (*path, step))


def value_error(
    document: Document, path: FieldPath, must: str, write: str, *, code: str = BAD_VALUE, found: bool = True
) -> PolicyFileError:
    """Return an error about the value at a path."""
    field = f"{format_path(path)}: " if path else ""
    value = f", found {describe_value(value_at(document.data, path))}" if found else ""
    message = f"{field}must {must}{value}. Write {write}"
    return PolicyFileError(document.locate(path), message, code, format_path(path) if path else "")


def describe_value(value: Any) -> str:
    """Return a value as messages show it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a map" if value else "an empty map"
    if value == []:
        return "an empty list"
    if isinstance(value, list):
        plain = len(value) <= MAX_LISTED_CHOICES and all(type(entry) in (str, int) for entry in value)
        entries = f"[{', '.join(map(str, value))}]" if plain else ""
        return entries if entries.isprintable() and 0 < len(entries) <= MAX_LIST_LENGTH else "a list"
    return quote_text(value)


def closest_word(found: object, known: Iterable[str]) -> str:
    """Return the known word that is most similar, or ""."""
    words = {word.lower(): word for word in known}
    if not isinstance(found, str) or not found:
        return ""
    text = found.lower()[:100]
    matches = difflib.get_close_matches(text, words, n=1, cutoff=0.6) or [
        word for word in words if len(text) >= MIN_PREFIX_LENGTH and word.startswith(text)
    ]
    return words[matches[0]] if matches else ""


def value_at(data: Any, path: FieldPath) -> Any:
    """Return the value at an existing path."""
    for step in path:
        data = data[step]
    return data


def _validation_error(detail: ErrorDetails, document: Document, model: type[SpecModel]) -> PolicyFileError:
    kind, context = detail["type"], detail.get("ctx", {})
    path = existing_path(document.data, detail["loc"])
    if kind == "extra_forbidden":
        return _unknown_field_error(document, path, model)
    if kind == "missing":
        return _missing_field_error(document, path, str(detail["loc"][-1]))
    if kind == SPEC_ERROR and detail["loc"][-1:] == ("[key]",):
        must, write = context["must"], context["write"]
        message = f"{format_path(path)}: the key must {must}, found {describe_value(path[-1])}. Write {write}"
        return PolicyFileError(document.locate_key(path), message, BAD_VALUE, format_path(path))
    if kind == SPEC_ERROR:
        at = existing_path(document.data, (*path, *context["at"]))
        whole_map = isinstance(value_at(document.data, at), dict)
        return value_error(document, at, context["must"], context["write"], found=not whole_map)
    if kind == "literal_error":
        return _choice_error(document, path, re.findall(r"'([^']+)'", context["expected"]))
    return value_error(document, path, *_requirement_and_fix(kind, context, document, path))


def existing_path(data: Any, location: Iterable[str | int]) -> FieldPath:
    """Return a path without the steps that pydantic adds (union tags, "[key]")."""
    path: list[str | int] = []
    for step in location:
        inside = isinstance(data, dict) and step in data
        if inside or (isinstance(data, list) and isinstance(step, int) and step < len(data)):
            path.append(step)
            data = data[step]
    return tuple(path)


def _requirement_and_fix(kind: str, context: dict[str, Any], document: Document, path: FieldPath) -> tuple[str, str]:
    value = value_at(document.data, path)
    if kind in _SHAPE_MESSAGES:
        must, write = _SHAPE_MESSAGES[kind]
        is_single = kind == "tuple_type" and isinstance(value, str)
        return f"be {must}", f'["{shorten_text(value)}"]' if is_single else write
    if kind == "string_type":
        is_scalar = isinstance(value, (int, float, bool))
        return "be text", f'"{describe_value(value)}" in quotes' if is_scalar else "text"
    if kind in ("greater_than_equal", "less_than_equal"):
        word, bound = ("at least", context.get("ge")) if "ge" in context else ("at most", context.get("le"))
        return f"be {word} {bound}", f"{bound}, or {'more' if 'ge' in context else 'less'}"
    if kind in ("too_short", "string_too_short"):
        return "not be empty", "at least one entry, or remove it"
    if kind in ("too_long", "string_too_long"):
        maximum = context["max_length"]
        return f"have at most {maximum} {'characters' if kind == 'string_too_long' else 'entries'}", "fewer"
    return "be a valid value", "a value from the documentation of this field"


def _choice_error(document: Document, path: FieldPath, choices: list[str]) -> PolicyFileError:
    likely = closest_word(value_at(document.data, path), choices)
    if likely and len(choices) > MAX_LISTED_CHOICES:
        return value_error(document, path, f"be one of {len(choices)} allowed values", likely)
    listed = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    return value_error(document, path, f"be {listed}", likely or "one of them")


def _missing_field_error(document: Document, path: FieldPath, field: str) -> PolicyFileError:
    parent = format_path(path) or document.data.get("kind", "the document")
    kind = document.data.get("kind") if field == "metadata" else ""
    example = _METADATA_EXAMPLES.get(str(kind)) or _FIELD_EXAMPLES.get(field, f"{field}: …")
    message = f"{parent}: must have the field {field}, found none. Write {example}"
    return PolicyFileError(document.locate(path), message, BAD_VALUE, format_path((*path, field)))


def _unknown_field_error(document: Document, path: FieldPath, model: type[SpecModel]) -> PolicyFileError:
    field, parents = str(path[-1]), _models_at(model, path[:-1])
    known = [_field_alias(name, parent) for parent in parents for name in parent.model_fields]
    section = next(
        (step for step in reversed(path[:-1]) if isinstance(step, str)), document.data.get("kind", "this file")
    )
    renamed = FORMER_FIELDS.get(field, "")
    likely = renamed if renamed in known else closest_word(field, known)
    asked = "It was renamed." if likely == renamed else f"Did you mean {likely}?"
    hint = f"{asked} Write {likely}" if likely else f"Write one of {', '.join(sorted(known))}"
    message = f"{format_path(path)}: must be a field of {section}, found {describe_value(field)}. {hint}"
    return PolicyFileError(document.locate_key(path), message, UNKNOWN_FIELD, format_path(path))


FORMER_FIELDS = {"others": "defaultWeight"}
"""Fields of policies before 0.1, and their names since."""


def _field_alias(name: str, model: type[SpecModel]) -> str:
    return model.model_fields[name].alias or name


def _models_at(model: type[SpecModel], path: FieldPath) -> list[type[SpecModel]]:
    """Return the models that are possible at a path."""
    models = [model]
    for step in path:
        below = [
            inner
            for one in models
            for name, field in one.model_fields.items()
            if _field_alias(name, one) == step
            for inner in _models_in(field.annotation)
        ]
        models = below or models
    return models


def _models_in(annotation: Any) -> list[type[SpecModel]]:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
