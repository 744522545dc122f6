"""Policy files to a PolicySet, or to every fault in them: nothing is half loaded.

A set with one fault is no set: the caller keeps the last good one, so a mistake can never mean "allow all".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webhook.documents.document import UNKNOWN_MARK, Document
from webhook.documents.reader import read_documents
from webhook.errors import DocumentError, PolicyFileError, SourceLocation
from webhook.model.field_paths import FieldPath
from webhook.policy import compiler
from webhook.policy.lint import find_conflicts
from webhook.policy.match_conditions import ExpressionError, compile_match_condition
from webhook.policy.policy_set import Exemption, MatchCondition, Policy, PolicySet
from webhook.policy.template_paths import merge_template_paths
from webhook.policy.validation import (
    UNREADABLE,
    closest_word,
    document_kind,
    kind_error,
    validate_document,
    value_at,
    value_error,
)
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException


class PolicySource(NamedTuple):
    """A written policy or exception that is well-formed, and where it stands."""

    document: Document
    model: GPUPolicy | GPUPolicyException

    @property
    def name(self) -> str:
        """Its name."""
        return self.model.metadata.name

    def is_replaced_by(self, other: PolicySource) -> bool:
        """Is the other one of the same kind and name?"""
        return self.name == other.name and self.model.kind == other.model.kind


Json = Mapping[str, Any]


SAME_NAME, BAD_CONDITION = "GPU-P105", "GPU-P106"
_GIVE_BOTH = "the policy too: there is none in this set. Give both: rightslice policy lint policies/ exceptions/"
TEST_KIND = "GPUPolicyTest"
POLICY_MODELS: dict[str, type[GPUPolicy] | type[GPUPolicyException]] = {
    "GPUPolicy": GPUPolicy,
    "GPUPolicyException": GPUPolicyException,
}


class LoadResult(NamedTuple):
    """What became of the files.

    Attributes:
        policies: The set; None where there is any error.
        errors: Every fault: first those inside one document, file by file, then those between documents.
    """

    policies: PolicySet | None
    errors: tuple[PolicyFileError, ...]


def load_policies(sources: Iterable[tuple[str, str | bytes]]) -> LoadResult:
    """Load policies and exceptions from (file name, text) pairs. GPUPolicyTest documents are passed over.

    Files without a single policy are a fault: a set of none would allow everything. No files at all are an empty set.
    """
    errors: list[PolicyFileError] = []
    texts = list(sources)
    found = [one for file, text in texts for one in _read_policy_file(file, text, errors)]
    written = [(one, one.model) for one in found if isinstance(one.model, GPUPolicy)]
    exceptions = [(one, one.model) for one in found if isinstance(one.model, GPUPolicyException)]

    policies = [_compile_policy(one.document, policy, errors) for one, policy in written]
    errors += _repeated_name_errors(one for one, _ in written)
    errors += _repeated_name_errors(one for one, _ in exceptions)
    errors += find_conflicts([(one.document, policy) for one, policy in written])
    if not errors:
        errors += _unknown_policy_errors(exceptions, {policy.name for policy in policies})
    if not errors and not policies:
        errors += _no_policy_errors(texts)
    if errors:
        return LoadResult(None, tuple(errors))
    return LoadResult(_build_policy_set(policies, found), ())


def check_with_others(document: Document, others: Sequence[PolicySource]) -> list[PolicyFileError]:
    """Every fault of one document, alone and together with others that are already in force.

    Args:
        others: Well-formed policies and exceptions. One of the same kind and name is what the document replaces.
    """
    errors: list[PolicyFileError] = []
    kind = _select_model(document, errors)
    written = validate_document(document, kind, errors) if kind is not None else None
    if written is None:
        return errors
    new = PolicySource(document, written)
    policies = [(one, one.model) for one in others if isinstance(one.model, GPUPolicy) and not one.is_replaced_by(new)]
    if isinstance(written, GPUPolicy):
        _compile_conditions(document, written, errors)
        beside = ([(other.document, policy), (document, written)] for other, policy in policies)
        return errors + [error for pair in beside for error in find_conflicts(pair)]
    return errors + list(_unknown_policy_errors([(new, written)], {other.name for other, _ in policies}))


def _build_policy_set(policies: list[Policy], found: list[PolicySource]) -> PolicySet:
    written = [one.model for one in found if isinstance(one.model, GPUPolicy)]
    exceptions = [one.model for one in found if isinstance(one.model, GPUPolicyException)]
    exemptions: list[Exemption] = []
    templates: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {}
    for policy in written:
        exemptions += compiler.compile_exemptions(policy.metadata.name, policy.spec.exemptions)
        for kind, paths in compiler.compile_template_paths(policy.spec.match).items():
            templates[kind] = templates.get(kind, ()) + paths
    exemptions += map(compiler.compile_exception, exceptions)
    return PolicySet(policies, exemptions, merge_template_paths(templates), tuple(found))


def _read_policy_file(file: str, text: str | bytes, errors: list[PolicyFileError]) -> Iterator[PolicySource]:
    try:
        documents = read_documents(text, file)
    except DocumentError as error:
        errors.append(PolicyFileError(error.location, error.message, UNREADABLE))
        return
    for document in documents:
        kind = _select_model(document, errors)
        written = validate_document(document, kind, errors) if kind is not None else None
        if written is not None:
            yield PolicySource(document, written)


def _select_model(
    document: Document, errors: list[PolicyFileError]
) -> type[GPUPolicy] | type[GPUPolicyException] | None:
    """The model of a document; None where it is none of ours, which is an error unless it is a test."""
    if document_kind(document) == TEST_KIND:
        return None
    problem = kind_error(document, (*POLICY_MODELS, TEST_KIND))
    if problem is not None:
        errors.append(problem)
        return None
    return POLICY_MODELS[document_kind(document)]


def _compile_policy(document: Document, written: GPUPolicy, errors: list[PolicyFileError]) -> Policy:
    spec, present = written.spec, document.data["spec"]
    conditions = _compile_conditions(document, written, errors)
    return Policy(
        name=written.metadata.name,
        location=document.locate(),
        digest=compiler.spec_digest(present),
        mode=compiler.effective_mode(None, spec.mode),
        match=compiler.compile_match(spec.match, conditions, fail=spec.failure_policy == "Fail"),
        description=spec.description,
        fair_share=compiler.compile_fair_share(spec.fair_share, written.metadata.name),
        rollout=compiler.compile_rollout(spec.rollout, written.metadata.name),
        section_locations=_locate_sections(document, ("spec",)),
        **compiler.compile_sections(spec),
    )


def _locate_sections(document: Document, path: FieldPath) -> dict[str, SourceLocation]:
    """Where each section stands, and each key of it, by dotted name below `spec`."""
    found: dict[str, SourceLocation] = {}
    for section, content in value_at(document.data, path).items():
        found[section] = document.locate_key((*path, section))
        if isinstance(content, dict):
            found |= {f"{section}.{key}": document.locate_key((*path, section, key)) for key in content}
    return found


def _compile_conditions(
    document: Document, written: GPUPolicy, errors: list[PolicyFileError]
) -> tuple[MatchCondition, ...]:
    compiled = []
    for index, condition in enumerate(written.spec.match.match_conditions):
        path = ("spec", "match", "matchConditions", index, "expression")
        try:
            compiled.append(compile_match_condition(condition.name, condition.expression))
        except ExpressionError as error:
            errors.append(value_error(document, path, error.must, error.write, code=BAD_CONDITION, found=False))
    return tuple(compiled)


def _repeated_name_errors(found: Iterable[PolicySource]) -> Iterator[PolicyFileError]:
    first: dict[str, SourceLocation] = {}
    for one in found:
        place = one.document.locate(("metadata", "name"))
        if one.name not in first:
            first[one.name] = place
            continue
        sentence = f"metadata.name: must be a name of its own, found {one.name!r} again (first at {first[one.name]})"
        yield PolicyFileError(place, f"{sentence}. Rename one of the two", SAME_NAME)


def _no_policy_errors(texts: Sequence[tuple[str, str | bytes]]) -> Iterator[PolicyFileError]:
    for file, _ in texts[:1]:
        among = f" in {len(texts)} files" if len(texts) > 1 else ""
        sentence = f"must hold at least one GPUPolicy, found none{among}"
        yield PolicyFileError(
            SourceLocation(file, 1, 1), f"{sentence}. Write one: rightslice policy new NAME", UNREADABLE
        )


def _unknown_policy_errors(
    exceptions: list[tuple[PolicySource, GPUPolicyException]], known: set[str]
) -> Iterator[PolicyFileError]:
    for one, exception in exceptions:
        name = exception.spec.policy_name
        if name not in known:
            write = closest_word(name, known) or ", ".join(sorted(known)) or _GIVE_BOTH
            yield value_error(one.document, ("spec", "policyName"), "be the name of a policy in this set", write)


def document_from_object(data: Json) -> Document:
    """An object as a document. Its file is its kind and name; its places have no lines.

    Of the metadata only name and namespace are kept: the rest is the API server's, and grows with its versions.
    """
    metadata = _as_map(data.get("metadata"))
    name = metadata.get("name") or f"{metadata.get('generateName', '')}0"
    namespace = metadata.get("namespace")
    kept = {"name": name, "namespace": namespace} if namespace else {"name": name}
    whole = {key: value for key, value in data.items() if key != "status"} | {"metadata": kept}
    where = f"{namespace}/{name}" if namespace else name
    return Document(whole, f"{data.get('kind')} {where}", UNKNOWN_MARK)


def is_spec_unchanged(data: Json, old: Json | None) -> bool:
    """Does an update leave what the author wrote as it was?"""
    return old is not None and data.get("spec") == old.get("spec")


def is_being_deleted(data: Json) -> bool:
    """Is the object deleted already, but for its finalizers?"""
    return _as_map(data.get("metadata")).get("deletionTimestamp") is not None


def _as_map(value: object) -> Json:
    return value if isinstance(value, dict) else {}
