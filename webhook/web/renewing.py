"""A certificate that changes on disk while the process serves; where the new one does not load, the last good stays."""

from __future__ import annotations

import ssl
from collections.abc import Hashable
from datetime import datetime
from typing import Protocol

from webhook.certs.issuing import end_of
from webhook.web.checks import Check
from webhook.web.plaintext import one_line
from webhook.web.tls import CertificateError, PairFiles, renew


class Told(Protocol):
    """Who is told how it went."""

    def certificate_loaded(self, ends: datetime | None) -> None:
        """A new serving certificate is in use."""

    def certificate_refused(self, why: str) -> None:
        """The files are no usable pair; the last good one stays."""


class CertificateWatch:
    """Keeps a live context's certificate as the files are."""

    def __init__(self, files: PairFiles, context: ssl.SSLContext, told: Told) -> None:
        self._files = files
        self._context = context
        self._told = told
        self._seen = _fingerprint(self._files)
        self._fault = ""

    def checks(self) -> list[Check]:
        """The line of `/readyz?verbose`: files that cannot be used leave the pair before them in use."""
        says = one_line(f"not in use: {self._fault}") if self._fault else "as served"
        return [Check("certificate files", not self._fault, says, must=False)]

    async def look(self) -> None:
        """Load the files again if they changed."""
        seen = _fingerprint(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            pair = self._files.read()
            renew(self._context, pair)
        except OSError as error:
            self._refuse(f"cannot be read ({error.strerror})")
        except CertificateError as error:
            self._refuse(str(error))
        else:
            self._fault = ""
            self._told.certificate_loaded(end_of(pair.certificate))

    def _refuse(self, why: str) -> None:
        self._fault = why
        self._told.certificate_refused(why)


def _fingerprint(files: PairFiles) -> Hashable:
    """What changes when the files do, also when they come and go."""
    try:
        return files.fingerprint()
    except OSError as error:
        return ("not there", error.errno)
