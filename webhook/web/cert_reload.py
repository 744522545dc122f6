"""A certificate that changes on disk while the process serves; where the new one does not load, the last good stays."""

from __future__ import annotations

import ssl
from collections.abc import Hashable
from datetime import datetime
from typing import Protocol

from webhook.certs.issuer import expiry_of
from webhook.web.health import HealthCheck
from webhook.web.http_messages import strip_control_characters
from webhook.web.tls import CertificateError, CertificateFiles, replace_certificate


class CertificateEventSink(Protocol):
    """Who is told how it went."""

    def record_certificate_loaded(self, ends: datetime | None) -> None:
        """A new serving certificate is in use."""

    def record_certificate_rejected(self, why: str) -> None:
        """The files are no usable pair; the last good one stays."""


class CertificateReloader:
    """Keeps a live context's certificate as the files are."""

    def __init__(self, files: CertificateFiles, context: ssl.SSLContext, told: CertificateEventSink) -> None:
        self._files = files
        self._context = context
        self._events = told
        self._fingerprint = _certificate_fingerprint(self._files)
        self._error = ""

    def checks(self) -> list[HealthCheck]:
        """The line of `/readyz?verbose`: files that cannot be used leave the pair before them in use."""
        says = strip_control_characters(f"not in use: {self._error}") if self._error else "as served"
        return [HealthCheck("certificate files", not self._error, says, required=False)]

    async def reload_if_changed(self) -> None:
        """Load the files again if they changed."""
        seen = _certificate_fingerprint(self._files)
        if seen == self._fingerprint:
            return
        self._fingerprint = seen
        try:
            pair = self._files.read()
            replace_certificate(self._context, pair)
        except OSError as error:
            self._reject(f"cannot be read ({error.strerror})")
        except CertificateError as error:
            self._reject(str(error))
        else:
            self._error = ""
            self._events.record_certificate_loaded(expiry_of(pair.certificate))

    def _reject(self, why: str) -> None:
        self._error = why
        self._events.record_certificate_rejected(why)


def _certificate_fingerprint(files: CertificateFiles) -> Hashable:
    """What changes when the files do, also when they come and go."""
    try:
        return files.fingerprint()
    except OSError as error:
        return ("not there", error.errno)
