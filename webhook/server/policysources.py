"""Policies from files and from objects of the cluster, made into one set.

Files win on equal names. What does not load is left as it was when it last did, source by source: an object by
itself, the files together. So one bad object takes nothing from the others, and no mistake means "allow all".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from webhook.errors import LocatedError
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import SAME_NAME

PolicyTextList = Sequence[tuple[str, str]]
"""What to call each text in messages, and the text."""


class LoadedPolicies(Protocol):
    """What `webhook.policy.loading.load_policies` gives."""

    @property
    def policies(self) -> PolicySet | None:
        """The set, or None where anything is wrong."""

    @property
    def errors(self) -> Sequence[Exception]:
        """Everything that is wrong."""


PolicyLoader = Callable[[PolicyTextList], LoadedPolicies]


class LastLoaded(NamedTuple):
    """What loaded last: the files, and each object by its name."""

    files: PolicyTextList = ()
    objects: Mapping[str, str] = {}


class UnusedReason(NamedTuple):
    """Why an object is not in use as it is written now: a word for programs, and a sentence."""

    reason: str
    message: str


FILE_WINS = UnusedReason("FileWins", "a policy file has the same name, and files win")


class CombinedPolicies(NamedTuple):
    """What came of all sources.

    Attributes:
        policies: The set; None where not even what was good before loads.
        faults: Why some of what is there now is not in it, one sentence each, and what it is about: what to call a
            text, or "".
        good: What to fall back on next time.
        unused: The objects that are not in use as they are written now, and why.
    """

    policies: PolicySet | None
    errors: Mapping[str, str]
    last_loaded: LastLoaded
    unused: Mapping[str, UnusedReason] = {}


def combine_sources(files: PolicyTextList, objects: PolicyTextList, good: LastLoaded, load: PolicyLoader) -> CombinedPolicies:
    """Load all of it, and again without what is wrong until nothing is.

    Args:
        files: Texts of the policy files.
        objects: Texts of the objects.
        good: What loaded last.
        load: The policy loader.
    """
    named = dict(objects)
    faults: dict[str, str] = {}
    unused: dict[str, UnusedReason] = {}
    while True:
        loaded = load([*files, *named.items()])
        if loaded.policies is not None:
            return CombinedPolicies(loaded.policies, faults, LastLoaded(files, named), unused)
        before = (files, dict(named))
        for error in loaded.errors:
            source = error.location.file if isinstance(error, LocatedError) else ""
            if source in named and getattr(error, "code", "") == SAME_NAME:
                del named[source]
                unused.setdefault(source, FILE_WINS)
                continue
            faults[str(error)] = source
            if source in before[1]:
                _revert_object(named, source, before[1][source], good)
                unused.setdefault(source, UnusedReason("Invalid", str(error)))
            else:
                files = good.files
        if (files, named) == before:
            return CombinedPolicies(None, faults, good, unused)


def _revert_object(named: dict[str, str], source: str, text: str, good: LastLoaded) -> None:
    """The object as it was when it last loaded; where that is what does not load, without it."""
    former = good.objects.get(source, text)
    if former == text:
        named.pop(source, None)
    else:
        named[source] = former
