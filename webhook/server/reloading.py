"""Policies and certificates that change on disk while the server runs.

What does not load never takes the place of what does: a broken file, an empty folder and a folder that is gone
all leave the last good set in use, and are told in metrics, log and `/readyz?verbose`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from webhook.policy.compiled import PolicySet
from webhook.server.policyfiles import SUFFIXES, PolicyFiles
from webhook.server.tls import CertificateError, PairFiles, renew
from webhook.server.world import Clock, PolicyStatus, World
from webhook.telemetry.telemetry import Telemetry

POLL_SECONDS = 2.0
"""A swapped ConfigMap is in use within two looks: well within 10 s."""


class LoadedPolicies(Protocol):
    """What `webhook.policy.loading.load` gives."""

    @property
    def policies(self) -> PolicySet | None:
        """The set, or None where anything is wrong."""

    @property
    def errors(self) -> Sequence[Exception]:
        """Everything that is wrong."""


Load = Callable[[Sequence[tuple[str, str]]], LoadedPolicies]


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
        raise NoPoliciesError([f"{files.path}: must be a folder or file of policies ({error.strerror})"]) from error
    except ValueError as error:
        raise NoPoliciesError([str(error)]) from error
    if not texts:
        raise NoPoliciesError([f"{files.path}: must hold policy files ({', '.join(SUFFIXES)}), found none"])
    loaded = load(texts)
    if loaded.policies is None:
        raise NoPoliciesError([str(error) for error in loaded.errors])
    return loaded.policies


class PolicyWatch:
    """Keeps a world's policies as the files are."""

    def __init__(self, files: PolicyFiles, load: Load, world: World, clock: Clock, telemetry: Telemetry) -> None:
        self._files = files
        self._load = load
        self._world = world
        self._clock = clock
        self._telemetry = telemetry
        self._seen = _fingerprint(self._files)

    async def look(self) -> None:
        """Read the files again if they changed. Reading happens beside the event loop."""
        seen = _fingerprint(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            policies = await asyncio.to_thread(read_policies, self._files, self._load)
        except NoPoliciesError as error:
            self._keep(error.faults)
        except Exception as error:
            self._telemetry.crashed("policies", "", error)
            self._keep(("a fault while reading the policies; the log has the details",))
        else:
            self._take(policies)

    def _take(self, policies: PolicySet) -> None:
        now = self._clock()
        self._world.policies = policies
        self._world.policy_status = PolicyStatus(now)
        self._telemetry.policies_loaded(policies.digest, now)

    def _keep(self, faults: tuple[str, ...]) -> None:
        self._world.policy_status = PolicyStatus(self._world.policy_status.loaded, faults)
        self._telemetry.policies_kept(faults)


class CertificateWatch:
    """Keeps a live context's certificate as the files are."""

    def __init__(self, files: PairFiles, context: ssl.SSLContext, telemetry: Telemetry) -> None:
        self._files = files
        self._context = context
        self._telemetry = telemetry
        self._seen = _fingerprint(self._files)

    async def look(self) -> None:
        """Load the files again if they changed."""
        seen = _fingerprint(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            renew(self._context, self._files.read())
        except OSError as error:
            self._telemetry.certificate_kept(f"cannot be read ({error.strerror})")
        except CertificateError as error:
            self._telemetry.certificate_kept(str(error))
        else:
            self._telemetry.certificate_loaded()


def _fingerprint(files: PolicyFiles | PairFiles) -> Hashable:
    """What changes when the files do, also when they come and go."""
    try:
        return files.fingerprint()
    except OSError as error:
        return ("not there", error.errno)
