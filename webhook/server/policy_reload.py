"""Policies that change while the server runs, on disk or in the cluster.

What does not load never takes the place of what does: a broken file, an empty folder and a folder that is gone
all leave the last good set in use, and are told in metrics, log and `/readyz?verbose`.
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
"""What a policy that is an object is called by in messages, before its name."""


class NoPoliciesError(Exception):
    """The files hold no usable set of policies; `faults` says why, one sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.errors = tuple(faults)


def read_policies(files: PolicyFiles, load: PolicyLoader) -> PolicySet:
    """Read a set of at least one policy.

    Raises:
        NoPoliciesError: the files are not there, do not load, or hold no policy.
    """
    try:
        texts = files.read()
    except OSError as error:
        raise NoPoliciesError([_unreadable_source(error)]) from error
    except ValueError as error:
        raise NoPoliciesError([str(error)]) from error
    if empty := files.empty_folders():
        raise NoPoliciesError(
            [f"{path}: must hold policy files ({', '.join(DOCUMENT_SUFFIXES)}), found none" for path in empty]
        )
    loaded = load(texts)
    if loaded.policies is None:
        raise NoPoliciesError([str(error) for error in loaded.errors])
    return loaded.policies


class PolicyReadResult(NamedTuple):
    """A set; why some of what is there is not in it; and which objects that is true of."""

    policies: PolicySet
    errors: tuple[str, ...] = ()
    unused: Mapping[str, UnusedReason] = {}


class PolicyObjectTexts(Protocol):
    """Policies that are objects of the cluster."""

    version: int

    def texts(self) -> PolicyTextList:
        """What to call each object in messages, and its text."""

    def halted_names(self) -> Collection[str]:
        """What to call those whose rollout was halted."""


class PolicyReloader:
    """Keeps a world's policies as the files are, and as the cluster's objects are where there are any."""

    def __init__(
        self,
        files: PolicyFiles | None,
        load: PolicyLoader,
        world: AdmissionState,
        clock: Clock,
        telemetry: Telemetry,
        objects: PolicyObjectTexts | None = None,
    ) -> None:
        self._files = files
        self._load = load
        self._state = world
        self._clock = clock
        self._telemetry = telemetry
        self._objects = objects
        self._last_loaded = LastLoaded()
        self._halted_names: set[str] = set()
        if objects is not None:
            self._last_loaded = LastLoaded(self._texts()[0])  # what the world's policies came of
        self._lock = asyncio.Lock()
        self._last_fingerprint = self._fingerprint() if objects is None else None

    def _fingerprint(self) -> Hashable:
        files = _files_fingerprint(self._files) if self._files is not None else None
        return files, self._objects.version if self._objects is not None else 0

    async def reload_if_changed(self) -> None:
        """Read everything again if anything changed. Reading happens beside the event loop."""
        async with self._lock:
            seen = self._fingerprint()
            if seen == self._last_fingerprint:
                return
            self._last_fingerprint = seen
            try:
                objects = self._objects.texts() if self._objects is not None else None
                read = await asyncio.to_thread(self._read, objects)
            except NoPoliciesError as error:
                self._keep_last_policies(error.errors)
            except Exception as error:
                self._telemetry.record_crash("policies", "", error)
                self._keep_last_policies(("a fault while reading the policies; the log has the details",))
            else:
                self._install_policies(read)

    def _read(self, objects: PolicyTextList | None) -> PolicyReadResult:
        """The set, and why some of what is there is not in it.

        Raises:
            NoPoliciesError: there is no set to be had.
        """
        if objects is None:
            assert self._files is not None
            return PolicyReadResult(read_policies(self._files, self._load))
        files, unread = self._texts()
        combined = combine_sources(files, objects, self._last_loaded, self._load)
        faults = (*unread, *combined.errors)
        if combined.policies is None:
            raise NoPoliciesError(faults)
        if not combined.policies.policies:
            _require_intended_empty(objects, faults, self._state.policies)
        self._last_loaded = combined.last_loaded
        return PolicyReadResult(combined.policies, faults, combined.unused)

    def _texts(self) -> tuple[PolicyTextList, tuple[str, ...]]:
        """The files, as they were last where they cannot be read."""
        if self._files is None:
            return (), ()
        try:
            return self._files.read(), ()
        except OSError as error:
            return self._last_loaded.files, (_unreadable_source(error),)
        except ValueError as error:
            return self._last_loaded.files, (str(error),)

    def _install_policies(self, read: PolicyReadResult) -> None:
        now = self._clock()
        stopped = self._halted_names = self._halted_policies(read)
        self._state.policies = halt_rollouts(read.policies, stopped)
        self._telemetry.set_rollouts({one.name: one.name in stopped for one in read.policies.policies if one.rollout})
        self._state.policy_load = PolicyLoadStatus(now, read.errors, read.unused)
        self._telemetry.record_policies_loaded(read.policies.digest, len(read.policies.policies), now)
        if read.errors:
            self._telemetry.record_policies_rejected(read.errors)

    def _halted_policies(self, read: PolicyReadResult) -> set[str]:
        """Names of the policies in use whose rollout was halted; one whose change does not load is as it was before."""
        sources = self._objects.halted_names() if self._objects is not None else ()
        said = {_policy_name(source) for source in sources if read.unused.get(source) != FILE_WINS}
        former = {_policy_name(source) for source, why in read.unused.items() if why != FILE_WINS}
        return said | (self._halted_names & former)

    def _keep_last_policies(self, faults: tuple[str, ...]) -> None:
        before = self._state.policy_load
        self._state.policy_load = PolicyLoadStatus(before.loaded_at, faults, before.unused)
        self._telemetry.record_policies_rejected(faults)


def _policy_name(source: str) -> str:
    return source.removeprefix(POLICY_SOURCE_PREFIX)


def _require_intended_empty(objects: PolicyTextList, faults: Sequence[str], before: PolicySet) -> None:
    """An empty set allows everything: it is taken only where nobody has written a policy.

    Raises:
        NoPoliciesError: there are policies that do not load, or there were some until now.
    """
    if any(source.startswith(POLICY_SOURCE_PREFIX) for source, _ in objects):
        raise NoPoliciesError(faults)
    if before.policies:
        raise NoPoliciesError((*faults, "the cluster must hold at least one GPUPolicy, found none any more"))


def _unreadable_source(error: OSError) -> str:
    return f"{error.filename}: must be a folder or file of policies ({error.strerror})"


def _files_fingerprint(files: PolicyFiles) -> Hashable:
    """What changes when the files do, also when they come and go."""
    try:
        return files.fingerprint()
    except OSError as error:
        return ("not there", error.errno)
