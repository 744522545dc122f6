"""Policies that change while the server runs, on disk or in the cluster.

What does not load never takes the place of what does: a broken file, an empty folder and a folder that is gone
all leave the last good set in use, and are told in metrics, log and `/readyz?verbose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from webhook.documents.names import SUFFIXES
from webhook.policy.capping import halted
from webhook.policy.compiled import PolicySet
from webhook.server.policyfiles import PolicyFiles
from webhook.server.policysources import FILE_WINS, Good, Load, Texts, Unused, combine
from webhook.server.world import Clock, PolicyLoad, World
from webhook.telemetry.telemetry import Telemetry

POLICY_OBJECT = "GPUPolicy/"
"""What a policy that is an object is called by in messages, before its name."""


class NoPoliciesError(Exception):
    """The files hold no usable set of policies; `faults` says why, one sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def read_policies(files: PolicyFiles, load: Load) -> PolicySet:
    """Read a set of at least one policy.

    Raises:
        NoPoliciesError: the files are not there, do not load, or hold no policy.
    """
    try:
        texts = files.read()
    except OSError as error:
        raise NoPoliciesError([_unreadable(error)]) from error
    except ValueError as error:
        raise NoPoliciesError([str(error)]) from error
    if empty := files.empty():
        raise NoPoliciesError([f"{path}: must hold policy files ({', '.join(SUFFIXES)}), found none" for path in empty])
    loaded = load(texts)
    if loaded.policies is None:
        raise NoPoliciesError([str(error) for error in loaded.errors])
    return loaded.policies


class ReadPolicies(NamedTuple):
    """A set; why some of what is there is not in it; and which objects that is true of."""

    policies: PolicySet
    faults: tuple[str, ...] = ()
    unused: Mapping[str, Unused] = {}


class PolicyTexts(Protocol):
    """Policies that are objects of the cluster."""

    version: int

    def texts(self) -> Texts:
        """What to call each object in messages, and its text."""

    def halted(self) -> Collection[str]:
        """What to call those whose rollout was halted."""


class PolicyWatch:
    """Keeps a world's policies as the files are, and as the cluster's objects are where there are any."""

    def __init__(
        self,
        files: PolicyFiles | None,
        load: Load,
        world: World,
        clock: Clock,
        telemetry: Telemetry,
        objects: PolicyTexts | None = None,
    ) -> None:
        self._files = files
        self._load = load
        self._world = world
        self._clock = clock
        self._telemetry = telemetry
        self._objects = objects
        self._good = Good()
        self._stopped: set[str] = set()
        if objects is not None:
            self._good = Good(self._texts()[0])  # what the world's policies came of
        self._looking = asyncio.Lock()
        self._seen = self._fingerprint() if objects is None else None

    def _fingerprint(self) -> Hashable:
        files = _fingerprint(self._files) if self._files is not None else None
        return files, self._objects.version if self._objects is not None else 0

    async def look(self) -> None:
        """Read everything again if anything changed. Reading happens beside the event loop."""
        async with self._looking:
            seen = self._fingerprint()
            if seen == self._seen:
                return
            self._seen = seen
            try:
                objects = self._objects.texts() if self._objects is not None else None
                read = await asyncio.to_thread(self._read, objects)
            except NoPoliciesError as error:
                self._keep(error.faults)
            except Exception as error:
                self._telemetry.crashed("policies", "", error)
                self._keep(("a fault while reading the policies; the log has the details",))
            else:
                self._take(read)

    def _read(self, objects: Texts | None) -> ReadPolicies:
        """The set, and why some of what is there is not in it.

        Raises:
            NoPoliciesError: there is no set to be had.
        """
        if objects is None:
            assert self._files is not None
            return ReadPolicies(read_policies(self._files, self._load))
        files, unread = self._texts()
        combined = combine(files, objects, self._good, self._load)
        faults = (*unread, *combined.faults)
        if combined.policies is None:
            raise NoPoliciesError(faults)
        if not combined.policies.policies:
            _require_none_meant(objects, faults, self._world.policies)
        self._good = combined.good
        return ReadPolicies(combined.policies, faults, combined.unused)

    def _texts(self) -> tuple[Texts, tuple[str, ...]]:
        """The files, as they were last where they cannot be read."""
        if self._files is None:
            return (), ()
        try:
            return self._files.read(), ()
        except OSError as error:
            return self._good.files, (_unreadable(error),)
        except ValueError as error:
            return self._good.files, (str(error),)

    def _take(self, read: ReadPolicies) -> None:
        now = self._clock()
        stopped = self._stopped = self._halted(read)
        self._world.policies = halted(read.policies, stopped)
        self._telemetry.rollouts({one.name: one.name in stopped for one in read.policies.policies if one.rollout})
        self._world.policy_load = PolicyLoad(now, read.faults, read.unused)
        self._telemetry.policies_loaded(read.policies.digest, len(read.policies.policies), now)
        if read.faults:
            self._telemetry.policies_refused(read.faults)

    def _halted(self, read: ReadPolicies) -> set[str]:
        """Names of the policies in use whose rollout was halted; one whose change does not load is as it was before."""
        sources = self._objects.halted() if self._objects is not None else ()
        said = {_policy_of(source) for source in sources if read.unused.get(source) != FILE_WINS}
        former = {_policy_of(source) for source, why in read.unused.items() if why != FILE_WINS}
        return said | (self._stopped & former)

    def _keep(self, faults: tuple[str, ...]) -> None:
        before = self._world.policy_load
        self._world.policy_load = PolicyLoad(before.loaded, faults, before.unused)
        self._telemetry.policies_refused(faults)


def _policy_of(source: str) -> str:
    return source.removeprefix(POLICY_OBJECT)


def _require_none_meant(objects: Texts, faults: Sequence[str], before: PolicySet) -> None:
    """An empty set allows everything: it is taken only where nobody has written a policy.

    Raises:
        NoPoliciesError: there are policies that do not load, or there were some until now.
    """
    if any(source.startswith(POLICY_OBJECT) for source, _ in objects):
        raise NoPoliciesError(faults)
    if before.policies:
        raise NoPoliciesError((*faults, "the cluster must hold at least one GPUPolicy, found none any more"))


def _unreadable(error: OSError) -> str:
    return f"{error.filename}: must be a folder or file of policies ({error.strerror})"


def _fingerprint(files: PolicyFiles) -> Hashable:
    """What changes when the files do, also when they come and go."""
    try:
        return files.fingerprint()
    except OSError as error:
        return ("not there", error.errno)
