"""Keeps the certificates of a cluster: reads Secret and webhook configurations, takes the one step that is due.

Every write is conditional on what was read, so a replica that was overtaken is told so by the API server, and
looks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

from webhook.certs.held import Held, Leaf
from webhook.certs.hooks import HookChoice, hook_of, with_bundle
from webhook.certs.making import held_after
from webhook.certs.plan import Hook, Rest, Seen, Step, Trust, is_valid, next_step
from webhook.certs.secrets import SecretName, held_in, secret_with
from webhook.errors import ApiError

CONFLICT = 409
NOT_FOUND = 404


class Api(Protocol):
    """What is used of `webhook.kube.api.Api`."""

    @property
    def moment(self) -> datetime | None:
        """The server's clock when it last answered."""

    async def get(self, path: str, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """Read an object or a list."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write an object, if it has not changed since it was read."""

    async def patch(self, path: str, body: Any, kind: Literal["merge"]) -> dict[str, Any]:
        """Change an object."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is kept, and for whom.

    Attributes:
        secret: Where the certificates are.
        hooks: Which webhook configurations must trust them.
        names: What clients call the server by; the first also names the certificate.
    """

    secret: SecretName
    hooks: HookChoice
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look came to.

    Attributes:
        step: What was due.
        wrote: It was done, and there may be more to do at once.
        leaf: What is to be served: the Secret's certificate, if it holds at this moment.
        now: The API server's time.
        faults: What could not be read in the Secret.
        hooks: How many webhook configurations there are; None: only the leader looks.
    """

    step: Step
    wrote: bool
    leaf: Leaf | None
    now: datetime
    faults: tuple[str, ...] = ()
    hooks: int | None = None


class Found(NamedTuple):
    """What the API server has: the Secret and the configurations by their path, as objects and as values."""

    secret: Mapping[str, Any] | None
    held: Held | None
    configurations: Mapping[str, Mapping[str, Any]]
    hooks: tuple[Hook, ...]


@dataclass(slots=True)
class Keeper:
    """One replica's share in keeping the certificates.

    Attributes:
        leads: Is this replica the leader now?
        clock: The moment, where the API server does not tell its own.
        monotonic: Seconds of a clock that never steps.
    """

    api: Api
    keeping: Keeping
    leads: Callable[[], bool]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    _state: object = field(init=False, default=None)
    _since: float = field(init=False, default=0.0)

    async def look(self) -> Looked:
        """Read, and take the step that is due, if there is one.

        Raises:
            ApiError: the API server does not let us, or does not answer.
        """
        leads = self.leads()
        found = await self._find(with_hooks=leads)
        if found.held is None and not leads:  # whoever writes the first Secret must know what is trusted already
            found = await self._find(with_hooks=True)
        now = self.api.moment or self.clock()
        names = frozenset(self.keeping.names)
        step = next_step(Seen(found.held, found.hooks, now, self._steady(found), names, leads))
        wrote = await self._take(step, found, now)
        held = found.held or Held()
        return Looked(step, wrote, _to_serve(held, now), now, held.faults, len(found.hooks) if leads else None)

    async def to_serve(self) -> Leaf | None:
        """The certificate in the Secret, if it holds: also where everything else is refused.

        Raises:
            ApiError: the Secret cannot be read.
        """
        found = await self._find(with_hooks=False)
        return _to_serve(found.held or Held(), self.api.moment or self.clock())

    async def _find(self, *, with_hooks: bool) -> Found:
        """Read the webhook configurations, and the Secret after them: so that what it has is never older than they."""
        configurations = await self.keeping.hooks.read(self.api) if with_hooks else {}
        try:
            secret = await self.api.get(self.keeping.secret.path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            secret = None
        hooks = tuple(hook_of(path, each) for path, each in configurations.items())
        return Found(secret, held_in(secret), configurations, hooks)

    def _steady(self, found: Found) -> timedelta:
        """How long it has been like this."""
        moment, state = self.monotonic(), (found.held, found.hooks)
        if self._state != state:
            self._state, self._since = state, moment
        return timedelta(seconds=moment - self._since)

    async def _take(self, step: Step, found: Found, now: datetime) -> bool:
        """Take a step; False where there was none, or somebody else was first."""
        if isinstance(step, Rest):
            return False
        held = found.held or Held()
        try:
            if isinstance(step, Trust):
                for hook in step.hooks:
                    patch = with_bundle(found.configurations[hook.path], held.bundle)
                    await self.api.patch(hook.path, patch, "merge")
            else:
                await self._write(held_after(step, held, self.keeping.names, now), found.secret)
        except ApiError as error:
            gone = error.status == NOT_FOUND and found.secret is not None
            if error.status == CONFLICT or gone:
                return False
            raise
        return True

    async def _write(self, held: Held, before: Mapping[str, Any] | None) -> None:
        name = self.keeping.secret
        body = secret_with(held, name, before)
        if before is None:
            await self.api.create(name.folder, body)
        else:
            await self.api.replace(name.path, body)


def _to_serve(held: Held, now: datetime) -> Leaf | None:
    """The certificate in the Secret, if clients that trust its bundle can accept it now."""
    leaf = None if held.foreign else held.leaf
    return leaf if leaf is not None and leaf.signed_by is not None and is_valid(leaf, now) else None
