"""Reloads policies that change while the server runs, in files or in the cluster.

Invalid policies never replace valid ones: after an invalid file, an empty folder or a deleted folder the last valid set
stays active, and metrics, log and `/readyz?verbose` report it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from webhook.documents.reader import DOCUMENT_SUFFIXES
from webhook.policy.policy_set import PolicySet, halt_rollouts
from webhook.server.admission_state import AdmissionState, Clock, PolicyLoadStatus
from webhook.server.policy_sources import (
    FILE_WINS,
    LastLoaded,
    NoPoliciesError,
    PolicyFiles,
    PolicyLoader,
    PolicyTextList,
    UnusedReason,
    combine_sources,
    list_policy_files,
)
from webhook.telemetry.telemetry import Telemetry

POLICY_SOURCE_PREFIX = "GPUPolicy/"
"""Precedes the name of a policy object in the name of its source."""


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
        NoPoliciesError: the files cannot be read, do not load, or contain no policy.
    """
    texts = files.read()
    if empty := [path for path in files.paths if not list_policy_files(path)]:
        suffixes = ", ".join(DOCUMENT_SUFFIXES)
        raise NoPoliciesError([f"{path}: must hold policy files ({suffixes}), found none" for path in empty])
    loaded = load(texts)
    if loaded.policies is None:
        raise NoPoliciesError([str(error) for error in loaded.errors])
    return loaded.policies


@dataclass(slots=True)
class PolicyReloader:
    """Keeps the active policies up to date with files and, if there are any, with objects of the cluster."""

    files: PolicyFiles | None
    load: PolicyLoader
    state: AdmissionState
    clock: Clock
    telemetry: Telemetry
    objects: PolicyObjectTexts | None = None
    _last_loaded: LastLoaded = field(init=False, default=LastLoaded())
    _last_fingerprint: Hashable = field(init=False, default=None)
    _halted_names: set[str] = field(init=False, default_factory=set)
    _lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.objects is None:
            self._last_fingerprint = self._fingerprint()
        else:
            self._last_loaded = LastLoaded(self._texts()[0])  # the active policies were loaded from these

    def _fingerprint(self) -> Hashable:
        files = self.files.fingerprint() if self.files is not None else None
        return files, self.objects.version if self.objects is not None else 0

    async def reload_if_changed(self) -> None:
        """Load everything again if anything changed. Loading runs in a thread."""
        async with self._lock:
            fingerprint = self._fingerprint()
            if fingerprint == self._last_fingerprint:
                return
            self._last_fingerprint = fingerprint
            try:
                objects = self.objects.texts() if self.objects is not None else None
                result = await asyncio.to_thread(self._read, objects)
            except NoPoliciesError as error:
                self._keep_last_policies(error.errors)
            except Exception as error:
                self.telemetry.record_internal_error("policies", error)
                self._keep_last_policies(("internal error while loading policies; see the log",))
            else:
                self._install_policies(result)

    def _read(self, objects: PolicyTextList | None) -> PolicyReadResult:
        """Load all sources.

        Raises:
            NoPoliciesError: there is no usable set, or it is empty although policies were written.
        """
        if objects is None:
            assert self.files is not None
            return PolicyReadResult(read_policies(self.files, self.load))
        files, file_errors = self._texts()
        combined = combine_sources(files, objects, self._last_loaded, self.load)
        errors = (*file_errors, *combined.errors)
        if combined.policies is None:
            raise NoPoliciesError(errors)
        if not combined.policies.policies:  # an empty set allows everything: it must be intended
            if any(source.startswith(POLICY_SOURCE_PREFIX) for source, _ in objects):
                raise NoPoliciesError(errors)
            if self.state.policies.policies:
                deleted = "the cluster must have at least one GPUPolicy, but the last one was deleted"
                raise NoPoliciesError((*errors, deleted))
        self._last_loaded = combined.last_loaded
        return PolicyReadResult(combined.policies, errors, combined.unused)

    def _texts(self) -> tuple[PolicyTextList, tuple[str, ...]]:
        if self.files is None:
            return (), ()
        try:
            return self.files.read(), ()
        except NoPoliciesError as error:
            return self._last_loaded.files, error.errors

    def _install_policies(self, result: PolicyReadResult) -> None:
        now, policies = self.clock(), result.policies
        sources = self.objects.halted_names() if self.objects is not None else ()
        halted = {_policy_name(source) for source in sources if result.unused.get(source) != FILE_WINS}
        former = {_policy_name(source) for source, reason in result.unused.items() if reason != FILE_WINS}
        halted |= self._halted_names & former  # a policy whose last valid version is active stays as it was
        self._halted_names = halted
        self.state.activate_policies(halt_rollouts(policies, halted))
        rollouts = {each.name: each.name in halted for each in policies.policies if each.rollout}
        self.telemetry.metrics.rollouts = rollouts
        self.state.policy_load = PolicyLoadStatus(now, result.errors, result.unused)
        self.telemetry.record_policies_loaded(policies.digest, len(policies.policies), now)
        if result.errors:
            self.telemetry.record_policies_rejected(result.errors)

    def _keep_last_policies(self, errors: tuple[str, ...]) -> None:
        before = self.state.policy_load
        self.state.policy_load = PolicyLoadStatus(before.loaded_at, errors, before.unused)
        self.telemetry.record_policies_rejected(errors)


def _policy_name(source: str) -> str:
    return source.removeprefix(POLICY_SOURCE_PREFIX)
