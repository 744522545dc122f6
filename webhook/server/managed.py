"""The serving certificate that the replicas keep in a Secret: served once it is there, replaced while serving.

Until then connections are answered with a certificate that nobody trusts, so that probes, which do not look at it,
can be told why the process is not ready.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from webhook.certs.held import Leaf
from webhook.certs.keeping import Keeper, Looked
from webhook.certs.plan import Forget, Issue, NewAuthority, Rest, Step, Trust
from webhook.errors import ApiError
from webhook.kube.leading import Leading
from webhook.server.world import Clock
from webhook.telemetry.telemetry import Telemetry
from webhook.web.checks import Check
from webhook.web.plaintext import one_line
from webhook.web.tls import CertificateError, PemPair, renew

LOOK_SECONDS = 5.0
"""Between two looks. What somebody edits away is back within twice as much."""

SOON_SECONDS = 0.2
SOON_MOST = 4
"""A step is followed by the next at once, but only so often in a row: two programs that undo each other's work must
not do it as fast as they can."""

CLOCK_OFF = timedelta(minutes=5)
"""A difference between this machine's clock and the API server's that is worth a word."""

STEPS: dict[type[Step], str] = {NewAuthority: "authority", Trust: "trust", Issue: "issue", Forget: "forget"}
"""What each step is called in metrics and logs."""


@dataclass(slots=True)
class ManagedCertificate:
    """Looks after the certificate of a live context.

    Attributes:
        keeper: Reads and writes what the replicas share.
        leading: This replica's part in the election of who writes.
        context: Gets each new certificate.
        clock: This machine's clock.
    """

    keeper: Keeper
    leading: Leading
    context: ssl.SSLContext
    telemetry: Telemetry
    clock: Clock
    _served: Leaf | None = field(init=False, default=None)
    _looked: Looked | None = field(init=False, default=None)
    _trouble: str = field(init=False, default="")
    _in_a_row: int = field(init=False, default=0)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(await self.look())

    async def look(self) -> float:
        """Look once; gives the seconds until the next look. Never raises: what is served stays."""
        looked = None
        try:
            looked = await self.keeper.look()
            self._take(looked)
            trouble = self._explained(self.leading.trouble) or self._told(looked)
        except ApiError as error:
            trouble = self._explained(error)
            await self._serve_anyway()
        except CertificateError as error:
            trouble = f"Secret {self.keeper.keeping.secret}: {error}"
        except Exception as error:
            self.telemetry.crashed("certificate", "", error)
            trouble = "a fault while keeping the certificate; the log has the details"
        self._note(trouble)
        self.telemetry.leads(self.leading.leads)
        return self._pause(looked)

    def checks(self) -> list[Check]:
        """Lines of `/readyz?verbose`."""
        secret, looked = self.keeper.keeping.secret, self._looked
        leaf = self._served
        served = f"of Secret {secret}, ends {leaf.ends:%Y-%m-%dT%H:%M:%SZ}" if leaf else f"waits for Secret {secret}"
        leader = "this replica" if self.leading.leads else one_line(self.leading.holder) or "nobody"
        work = self._trouble or (looked.step.why if looked else "has not looked yet")
        return [
            Check("certificate", leaf is not None, served),
            Check("certificate work", not self._trouble, one_line(work), must=False),
            Check("leader", bool(self.leading.holder), leader, must=False),
        ]

    def _take(self, looked: Looked) -> None:
        """Serve what is in the Secret, and tell what was done."""
        self._serve(looked.leaf)
        if looked.wrote:
            hooks = [hook.path for hook in looked.step.hooks] if isinstance(looked.step, Trust) else []
            self.telemetry.certificate_step(STEPS[type(looked.step)], looked.step.why, hooks)
        self._looked = looked

    def _serve(self, leaf: Leaf | None) -> None:
        if leaf is not None and leaf != self._served:
            renew(self.context, PemPair(leaf.certificate, leaf.key))
            self._served = leaf
            self.telemetry.certificate_loaded(leaf.ends)

    async def _serve_anyway(self) -> None:
        """A leader that is not let at the webhook configurations serves like any other replica."""
        with suppress(ApiError, CertificateError):
            self._serve(await self.keeper.to_serve())

    def _note(self, trouble: str) -> None:
        """Say what is wrong when it begins, changes and ends, and no more often."""
        if trouble != self._trouble:
            self._trouble = trouble
            self.telemetry.certificate_trouble(trouble)

    def _pause(self, looked: Looked | None) -> float:
        self._in_a_row = self._in_a_row + 1 if looked is not None and looked.wrote else 0
        if 0 < self._in_a_row <= SOON_MOST:
            return SOON_SECONDS
        return LOOK_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads calls, keeps no secret

    def _explained(self, error: ApiError | None) -> str:
        """Why the API server does not let us, and what it has to allow; empty: it does."""
        if error is None or error.status != 403:
            return str(error or "")
        keeping, lease = self.keeper.keeping, self.leading.lease
        return (
            f"{error.message}. Needed are get, create and update on Secret {keeping.secret} and Lease {lease}, and "
            f"get{', list' if keeping.hooks.selector else ''} and patch on webhook configurations {keeping.hooks}"
        )

    def _told(self, looked: Looked) -> str:
        """What somebody else has to do, as far as a look can tell; empty: nothing."""
        keeping = self.keeper.keeping
        if isinstance(looked.step, Rest) and looked.step.wrong:
            return f"Secret {keeping.secret}: {looked.step.why}"
        if looked.hooks == 0:
            return f"there is no webhook configuration {keeping.hooks}: nobody will call this server"
        if abs(self.clock() - looked.now) > CLOCK_OFF:
            return f"this machine's clock is wrong, or the API server's: they differ by more than {CLOCK_OFF}"
        return ""
