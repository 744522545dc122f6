"""Reloads policies that change while the server runs, in files or in the cluster.

Invalid policies never replace valid ones: after an invalid file, an empty folder or a deleted folder the last valid set
stays active, and metrics, log and `/readyz?verbose` report it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from webhook.documents.reader import DOCUMENT_SUFFIXES
from webhook.policy.policy_set import PolicySet, halt_rollouts
from webhook.server.admission_state import AdmissionState, Clock, PolicyLoadStatus
from webhook.server.policy_sources import (
    FILE_WINS,
    LastLoaded,
    PolicyFiles,
    PolicyLoader,
    PolicyTextList,
    UnusedReason,
    combine_sources,
)
from webhook.telemetry.telemetry import Telemetry

POLICY_SOURCE_PREFIX = "GPUPolicy/"
"""Precedes the name of a policy object in the name of its source."""


class NoPoliciesError(Exception):
    """There is no usable set of policies; `errors` has the reasons."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


class PolicyReadResult(NamedTuple):
    """A set of policies, errors about others, and the objects that are not used in their current version."""

    policies: PolicySet
    errors: tuple[str, ...] = ()
    unused: Mapping[str, UnusedReason] = {}


class PolicyObjectTexts(Protocol):
    """The policy objects of a cluster."""

    version: int

    def texts(self) -> PolicyTextList:
        """Return source name and text of each object."""

    def halted_names(self) -> Collection[str]:
        """Return the source names of policies with a halted rollout."""


def read_policies(files: PolicyFiles, load: PolicyLoader) -> PolicySet:
    """Load policies from files; there must be at least one.

    Raises:
        NoPoliciesError: the files do not exist, do not load, or contain no policy.
    """
    try:
        texts = files.read()
    except OSError as error:
        raise NoPoliciesError([_unreadable_source(error)]) from error
    except ValueError as error:
        raise NoPoliciesError([str(error)]) from error
    if empty := files.empty_folders():
        suffixes = ", ".join(DOCUMENT_SUFFIXES)
        raise NoPoliciesError([f"{path}: must hold policy files ({suffixes}), found none" for path in empty])
    loaded = load(texts)
    if loaded.policies is None:
        raise NoPoliciesError([str(error) for error in loaded.errors])
    return loaded.policies


class PolicyReloader:
    """Keeps the active policies up to date with files and, if there are any, with objects of the cluster."""

    def __init__(
        self,
        files: PolicyFiles | None,
        load: PolicyLoader,
        state: AdmissionState,
        clock: Clock,
        telemetry: Telemetry,
        objects: PolicyObjectTexts | None = None,
    ) -> None:
        self._files = files
        self._load = load
        self._state = state
        self._clock = clock
        self._telemetry = telemetry
        self._objects = objects
        self._last_loaded = LastLoaded()
        self._halted_names: set[str] = set()
        if objects is not None:
            self._last_loaded = LastLoaded(self._texts()[0])  # the active policies were loaded from these
        self._lock = asyncio.Lock()
        self._last_fingerprint = self._fingerprint() if objects is None else None

    def _fingerprint(self) -> Hashable:
        files = self._files.fingerprint() if self._files is not None else None
        return files, self._objects.version if self._objects is not None else 0

    async def reload_if_changed(self) -> None:
        """Load everything again if anything changed. Loading runs in a thread."""
        async with self._lock:
            fingerprint = self._fingerprint()
            if fingerprint == self._last_fingerprint:
                return
            self._last_fingerprint = fingerprint
            try:
                objects = self._objects.texts() if self._objects is not None else None
                result = await asyncio.to_thread(self._read, objects)
            except NoPoliciesError as error:
                self._keep_last_policies(error.errors)
            except Exception as error:
                self._telemetry.record_internal_error("policies", error)
                self._keep_last_policies(("internal error while loading policies; see the log",))
            else:
                self._install_policies(result)

    def _read(self, objects: PolicyTextList | None) -> PolicyReadResult:
        """Load all sources.

        Raises:
            NoPoliciesError: there is no usable set.
        """
        if objects is None:
            assert self._files is not None
            return PolicyReadResult(read_policies(self._files, self._load))
        files, file_errors = self._texts()
        combined = combine_sources(files, objects, self._last_loaded, self._load)
        errors = (*file_errors, *combined.errors)
        if combined.policies is None:
            raise NoPoliciesError(errors)
        if not combined.policies.policies:
            _require_intended_empty(objects, errors, self._state.policies)
        self._last_loaded = combined.last_loaded
        return PolicyReadResult(combined.policies, errors, combined.unused)

    def _texts(self) -> tuple[PolicyTextList, tuple[str, ...]]:
        if self._files is None:
            return (), ()
        try:
            return self._files.read(), ()
        except OSError as error:
            return self._last_loaded.files, (_unreadable_source(error),)
        except ValueError as error:
            return self._last_loaded.files, (str(error),)

    def _install_policies(self, result: PolicyReadResult) -> None:
        now, policies = self._clock(), result.policies
        halted = self._halted_names = self._halted_policies(result)
        self._state.policies = halt_rollouts(policies, halted)
        self._telemetry.set_rollouts({each.name: each.name in halted for each in policies.policies if each.rollout})
        self._state.policy_load = PolicyLoadStatus(now, result.errors, result.unused)
        self._telemetry.record_policies_loaded(policies.digest, len(policies.policies), now)
        if result.errors:
            self._telemetry.record_policies_rejected(result.errors)

    def _halted_policies(self, result: PolicyReadResult) -> set[str]:
        """Return the policies with a halted rollout; one whose last valid version is active stays as it was."""
        sources = self._objects.halted_names() if self._objects is not None else ()
        halted = {_policy_name(source) for source in sources if result.unused.get(source) != FILE_WINS}
        former = {_policy_name(source) for source, reason in result.unused.items() if reason != FILE_WINS}
        return halted | (self._halted_names & former)

    def _keep_last_policies(self, errors: tuple[str, ...]) -> None:
        before = self._state.policy_load
        self._state.policy_load = PolicyLoadStatus(before.loaded_at, errors, before.unused)
        self._telemetry.record_policies_rejected(errors)


def _policy_name(source: str) -> str:
    return source.removeprefix(POLICY_SOURCE_PREFIX)


def _require_intended_empty(objects: PolicyTextList, errors: Sequence[str], before: PolicySet) -> None:
    """Accept an empty set, which allows everything, only if no policy was ever written.

    Raises:
        NoPoliciesError: there are policies that do not load, or there were some until now.
    """
    if any(source.startswith(POLICY_SOURCE_PREFIX) for source, _ in objects):
        raise NoPoliciesError(errors)
    if before.policies:
        raise NoPoliciesError((*errors, "the cluster must have at least one GPUPolicy, but the last one was deleted"))


def _unreadable_source(error: OSError) -> str:
    return f"{error.filename}: must be a folder or file of policies ({error.strerror})"
