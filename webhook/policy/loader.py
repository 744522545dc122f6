"""Load policies into a PolicySet, or return every error.

A set with an error is not loaded at all: the caller keeps the last set, so a mistake never means "allow all".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webhook.documents.document import UNKNOWN_MARK, Document
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.policy import compiler
from webhook.policy.lint import find_conflicts
from webhook.policy.match_conditions import ExpressionError, compile_match_condition
from webhook.policy.policy_set import Exemption, MatchCondition, Policy, PolicySet
from webhook.policy.validation import (
    UNREADABLE,
    closest_word,
    document_kind,
    kind_error,
    read_policy_documents,
    validate_document,
    value_error,
)
from webhook.policy.workload_kinds import WORKLOAD_KINDS, with_sources
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException


class PolicySource(NamedTuple):
    """A valid policy or exception and its document."""

    document: Document
    model: GPUPolicy | GPUPolicyException

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.model.metadata.name


Json = Mapping[str, Any]

SAME_NAME, BAD_CONDITION = "GPU-P105", "GPU-P106"
_GIVE_BOTH = "a policy, and load both together: rightslice policy lint policies/ exceptions/"
TEST_KIND = "GPUPolicyTest"
POLICY_MODELS: dict[str, type[GPUPolicy] | type[GPUPolicyException]] = {
    "GPUPolicy": GPUPolicy,
    "GPUPolicyException": GPUPolicyException,
}


class LoadResult(NamedTuple):
    """The loaded set or its errors.

    Attributes:
        policies: The set; None if there is any error.
        errors: First the errors of single documents, file by file, then those between documents.
        skipped: A sentence for each object of another program, with its place.
    """

    policies: PolicySet | None
    errors: tuple[PolicyFileError, ...]
    skipped: tuple[str, ...] = ()


def load_policies(files: Iterable[tuple[str, str | bytes]], others: Iterable[PolicySource] = ()) -> LoadResult:
    """Load policies and exceptions from (file name, text) pairs. GPUPolicyTest documents are ignored.

    Objects of other programs are skipped with a note: folders of policies also contain a kustomization or a ConfigMap.
    Files without any policy are an error, because an empty set would allow everything. No files are an empty set.

    Args:
        others: Valid policies and exceptions that are also in the set, unless the files have one of that kind and name.
    """
    errors: list[PolicyFileError] = []
    skipped: list[str] = []
    texts = list(files)
    loaded = [source for file, text in texts for source in _read_policy_file(file, text, errors, skipped)]
    replaced = {(source.model.kind, source.name) for source in loaded}
    loaded += [each for each in others if (each.model.kind, each.name) not in replaced]
    models = [(source, source.model) for source in loaded if isinstance(source.model, GPUPolicy)]
    exceptions = [(source, source.model) for source in loaded if isinstance(source.model, GPUPolicyException)]

    policies = [
        compiler.compile_policy(source.document, model, _compile_conditions(source.document, model, errors))
        for source, model in models
    ]
    errors += _repeated_name_errors(source for source, _ in models)
    errors += _repeated_name_errors(source for source, _ in exceptions)
    errors += find_conflicts([(source.document, model) for source, model in models])
    if not errors:
        errors += _unknown_policy_errors(exceptions, {policy.name for policy in policies})
    if texts and not errors and not policies:
        where = f" in {len(texts)} files" if len(texts) > 1 else ""
        message = f"must contain at least one GPUPolicy, found none{where}. Write one: rightslice policy new NAME"
        errors.append(PolicyFileError(SourceLocation(texts[0][0], 1, 1), message, UNREADABLE))
    if errors:
        return LoadResult(None, tuple(errors), tuple(skipped))
    return LoadResult(_build_policy_set(policies, loaded), (), tuple(skipped))


def validate_policy(document: Document, errors: list[PolicyFileError]) -> PolicySource | None:
    """Return the policy or exception of a document; None for a test, and after an error, which is appended."""
    model = _validate_policy(document, errors)
    if isinstance(model, GPUPolicy):
        _compile_conditions(document, model, errors)
    return PolicySource(document, model) if model is not None else None


def check_with_others(new: PolicySource, others: Sequence[PolicySource]) -> list[PolicyFileError]:
    """Return the errors of a valid policy or exception together with others.

    Args:
        others: Valid policies and exceptions. The new one replaces one of the same kind and name.
    """
    errors: list[PolicyFileError] = []
    document, model = new
    kept = [other for other in others if (other.model.kind, other.name) != (model.kind, new.name)]
    if isinstance(model, GPUPolicy):
        for other in kept:
            if isinstance(other.model, GPUPolicy):
                errors += find_conflicts([(other.document, other.model), (document, model)])
        return errors
    known = {other.name for other in kept if isinstance(other.model, GPUPolicy)}
    return errors + list(_unknown_policy_errors([(new, model)], known))


def _build_policy_set(policies: list[Policy], sources: list[PolicySource]) -> PolicySet:
    exemptions: list[Exemption] = []
    exceptions: list[Exemption] = []
    kinds = dict(WORKLOAD_KINDS)
    for source in sources:
        if isinstance(source.model, GPUPolicyException):
            spec = source.model.spec
            exceptions.append(compiler.compile_exemption(source.name, spec.policy_name, spec))
            continue
        exemptions += [compiler.compile_exemption(one.name, source.name, one) for one in source.model.spec.exemptions]
        for kind in source.model.spec.match.templates:
            key = (kind.api_group, kind.kind)
            kinds[key] = with_sources(kinds.get(key), kind.paths, kind.replicas, kind.fields)
    return PolicySet(policies, exemptions + exceptions, kinds, tuple(sources))


def _read_policy_file(
    file: str, text: str | bytes, errors: list[PolicyFileError], skipped: list[str]
) -> Iterator[PolicySource]:
    try:
        documents, others = read_policy_documents(text, file)
    except DocumentError as error:
        errors.append(PolicyFileError(error.location, error.message, UNREADABLE))
        return
    skipped += others
    for document in documents:
        model = _validate_policy(document, errors)
        if model is not None:
            yield PolicySource(document, model)


def _validate_policy(document: Document, errors: list[PolicyFileError]) -> GPUPolicy | GPUPolicyException | None:
    """Return the valid policy or exception of a document; None for a test, and after an error."""
    kind = document_kind(document)
    if kind == TEST_KIND:
        return None
    error = kind_error(document, (*POLICY_MODELS, TEST_KIND))
    if error is not None:
        errors.append(error)
        return None
    return validate_document(document, POLICY_MODELS[kind], errors)


def _compile_conditions(
    document: Document, model: GPUPolicy, errors: list[PolicyFileError]
) -> tuple[MatchCondition, ...]:
    compiled = []
    for index, condition in enumerate(model.spec.match.match_conditions):
        path = ("spec", "match", "matchConditions", index, "expression")
        try:
            compiled.append(compile_match_condition(condition.name, condition.expression))
        except ExpressionError as error:
            errors.append(value_error(document, path, error.must, error.write, code=BAD_CONDITION, found=False))
    return tuple(compiled)


def _repeated_name_errors(sources: Iterable[PolicySource]) -> Iterator[PolicyFileError]:
    first: dict[str, SourceLocation] = {}
    for source in sources:
        name, location = source.name, source.document.locate(("metadata", "name"))
        if first.setdefault(name, location) is not location:
            message = f"metadata.name: must be unique, found {name!r} again (first at {first[name]})"
            yield PolicyFileError(location, f"{message}. Rename one of the two", SAME_NAME)


def _unknown_policy_errors(
    exceptions: list[tuple[PolicySource, GPUPolicyException]], known: set[str]
) -> Iterator[PolicyFileError]:
    for source, exception in exceptions:
        name = exception.spec.policy_name
        if name not in known:
            write = closest_word(name, known) or ", ".join(sorted(known)) or _GIVE_BOTH
            yield value_error(source.document, ("spec", "policyName"), "be the name of a policy in this set", write)


def document_from_object(data: Json) -> Document:
    """Return an API object as a document, located by its kind and name.

    Of the metadata only name and namespace are kept, because API servers add other fields.
    """
    metadata = _as_map(data.get("metadata"))
    name = metadata.get("name") or f"{metadata.get('generateName', '')}0"
    namespace = metadata.get("namespace")
    kept = {"name": name, "namespace": namespace} if namespace else {"name": name}
    content = {key: value for key, value in data.items() if key != "status"} | {"metadata": kept}
    title = f"{namespace}/{name}" if namespace else name
    return Document(content, f"{data.get('kind')} {title}", UNKNOWN_MARK)


def is_spec_unchanged(data: Json, old: Json | None) -> bool:
    """Return whether an update keeps the spec."""
    return old is not None and data.get("spec") == old.get("spec")


def is_being_deleted(data: Json) -> bool:
    """Return whether the object is only waiting for its finalizers."""
    return _as_map(data.get("metadata")).get("deletionTimestamp") is not None


def _as_map(value: object) -> Json:
    return value if isinstance(value, dict) else {}
