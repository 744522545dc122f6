"""Policy files to a PolicySet, or to every fault in them: nothing is half loaded.

A set with one fault is no set: the caller keeps the last good one, so a mistake can never mean "allow all".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from webhook.documents.places import Document
from webhook.documents.reading import read
from webhook.errors import DocumentError, Place, PolicyFileError
from webhook.model.paths import Path
from webhook.policy import compiling
from webhook.policy.compiled import Condition, Exemption, Policy, PolicySet
from webhook.policy.conditions import ExpressionError, compile_condition
from webhook.policy.contradictions import contradictions
from webhook.policy.explaining import closest, value_at, value_fault
from webhook.policy.found import Found
from webhook.policy.validating import UNREADABLE, kind_of, validated, wrong_kind
from webhook.policy.workloads import with_templates
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException

SAME_NAME, BAD_CONDITION = "GPU-P105", "GPU-P106"
ALONE = "the policy too: there is none in this set. Give both: rightslice policy lint policies/ exceptions/"
TEST_KIND = "GPUPolicyTest"
KINDS: dict[str, type[GPUPolicy] | type[GPUPolicyException]] = {
    "GPUPolicy": GPUPolicy,
    "GPUPolicyException": GPUPolicyException,
}


class Loaded(NamedTuple):
    """What became of the files.

    Attributes:
        policies: The set; None where there is any error.
        errors: Every fault: first those inside one document, file by file, then those between documents.
    """

    policies: PolicySet | None
    errors: tuple[PolicyFileError, ...]


def load(sources: Iterable[tuple[str, str | bytes]]) -> Loaded:
    """Load policies and exceptions from (file name, text) pairs. GPUPolicyTest documents are passed over.

    Files without a single policy are a fault: a set of none would allow everything. No files at all are an empty set.
    """
    errors: list[PolicyFileError] = []
    texts = list(sources)
    found = [one for file, text in texts for one in _read(file, text, errors)]
    written = [(one, one.written) for one in found if isinstance(one.written, GPUPolicy)]
    exceptions = [(one, one.written) for one in found if isinstance(one.written, GPUPolicyException)]

    policies = [_policy(one.document, policy, errors) for one, policy in written]
    errors += _repeated_names(one for one, _ in written)
    errors += _repeated_names(one for one, _ in exceptions)
    errors += contradictions([(one.document, policy) for one, policy in written])
    if not errors:
        errors += _lost_exceptions(exceptions, {policy.name for policy in policies})
    if not errors and not policies:
        errors += _nothing_in(texts)
    if errors:
        return Loaded(None, tuple(errors))
    return Loaded(_set(policies, found), ())


def faults_beside(document: Document, others: Sequence[Found]) -> list[PolicyFileError]:
    """Every fault of one document, alone and together with others that are already in force.

    Args:
        others: Well-formed policies and exceptions. One of the same kind and name is what the document replaces.
    """
    errors: list[PolicyFileError] = []
    kind = _kind(document, errors)
    written = validated(document, kind, errors) if kind is not None else None
    if written is None:
        return errors
    new = Found(document, written)
    policies = [(one, one.written) for one in others if isinstance(one.written, GPUPolicy) and not one.replaced_by(new)]
    if isinstance(written, GPUPolicy):
        _conditions(document, written, errors)
        beside = ([(other.document, policy), (document, written)] for other, policy in policies)
        return errors + [error for pair in beside for error in contradictions(pair)]
    return errors + list(_lost_exceptions([(new, written)], {other.name for other, _ in policies}))


def _set(policies: list[Policy], found: list[Found]) -> PolicySet:
    written = [one.written for one in found if isinstance(one.written, GPUPolicy)]
    exceptions = [one.written for one in found if isinstance(one.written, GPUPolicyException)]
    exemptions: list[Exemption] = []
    templates: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {}
    for policy in written:
        exemptions += compiling.exemptions_of(policy.metadata.name, policy.spec.exemptions)
        for kind, paths in compiling.templates_of(policy.spec.match).items():
            templates[kind] = templates.get(kind, ()) + paths
    exemptions += map(compiling.exception_of, exceptions)
    return PolicySet(policies, exemptions, with_templates(templates), tuple(found))


def _read(file: str, text: str | bytes, errors: list[PolicyFileError]) -> Iterator[Found]:
    try:
        documents = read(text, file)
    except DocumentError as error:
        errors.append(PolicyFileError(error.place, error.sentence, UNREADABLE))
        return
    for document in documents:
        kind = _kind(document, errors)
        written = validated(document, kind, errors) if kind is not None else None
        if written is not None:
            yield Found(document, written)


def _kind(document: Document, errors: list[PolicyFileError]) -> type[GPUPolicy] | type[GPUPolicyException] | None:
    """The model of a document; None where it is none of ours, which is an error unless it is a test."""
    if kind_of(document) == TEST_KIND:
        return None
    problem = wrong_kind(document, (*KINDS, TEST_KIND))
    if problem is not None:
        errors.append(problem)
        return None
    return KINDS[kind_of(document)]


def _policy(document: Document, written: GPUPolicy, errors: list[PolicyFileError]) -> Policy:
    spec, present = written.spec, document.data["spec"]
    conditions = _conditions(document, written, errors)
    return Policy(
        name=written.metadata.name,
        place=document.place(),
        digest=compiling.digest_of(present),
        mode=compiling.mode_of(None, spec.mode),
        match=compiling.match_of(spec.match, conditions, fail=spec.failure_policy == "Fail"),
        description=spec.description,
        fair_share=compiling.fair_share_of(spec.fair_share, written.metadata.name),
        rollout=compiling.rollout_of(spec.rollout, written.metadata.name),
        places=_places(document, ("spec",)),
        **compiling.sections_of(spec),
    )


def _places(document: Document, path: Path) -> dict[str, Place]:
    """Where each section stands, and each key of it, by dotted name below `spec`."""
    found: dict[str, Place] = {}
    for section, content in value_at(document.data, path).items():
        found[section] = document.key_place((*path, section))
        if isinstance(content, dict):
            found |= {f"{section}.{key}": document.key_place((*path, section, key)) for key in content}
    return found


def _conditions(document: Document, written: GPUPolicy, errors: list[PolicyFileError]) -> tuple[Condition, ...]:
    compiled = []
    for index, condition in enumerate(written.spec.match.match_conditions):
        path = ("spec", "match", "matchConditions", index, "expression")
        try:
            compiled.append(compile_condition(condition.name, condition.expression))
        except ExpressionError as error:
            errors.append(value_fault(document, path, error.must, error.write, code=BAD_CONDITION, found=False))
    return tuple(compiled)


def _repeated_names(found: Iterable[Found]) -> Iterator[PolicyFileError]:
    first: dict[str, Place] = {}
    for one in found:
        place = one.document.place(("metadata", "name"))
        if one.name not in first:
            first[one.name] = place
            continue
        sentence = f"metadata.name: must be a name of its own, found {one.name!r} again (first at {first[one.name]})"
        yield PolicyFileError(place, f"{sentence}. Rename one of the two", SAME_NAME)


def _nothing_in(texts: Sequence[tuple[str, str | bytes]]) -> Iterator[PolicyFileError]:
    for file, _ in texts[:1]:
        among = f" in {len(texts)} files" if len(texts) > 1 else ""
        sentence = f"must hold at least one GPUPolicy, found none{among}"
        yield PolicyFileError(Place(file, 1, 1), f"{sentence}. Write one: rightslice policy new NAME", UNREADABLE)


def _lost_exceptions(exceptions: list[tuple[Found, GPUPolicyException]], known: set[str]) -> Iterator[PolicyFileError]:
    for one, exception in exceptions:
        name = exception.spec.policy_name
        if name not in known:
            write = closest(name, known) or ", ".join(sorted(known)) or ALONE
            yield value_fault(one.document, ("spec", "policyName"), "be the name of a policy in this set", write)
