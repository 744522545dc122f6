"""Reloads certificate files while the process serves; an invalid new certificate does not replace the last one."""

from __future__ import annotations

import ssl

from webhook.certs.issuer import expiry_of
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.health import HealthCheck
from webhook.web.tls import CertificateError, CertificateFiles, replace_certificate


class CertificateReloader:
    """Keeps the certificate of a live TLS context up to date with its files."""

    def __init__(self, files: CertificateFiles, context: ssl.SSLContext, telemetry: ServerTelemetry) -> None:
        self._files = files
        self._context = context
        self._telemetry = telemetry
        self._fingerprint = self._files.fingerprint()
        self._error = ""

    def checks(self) -> list[HealthCheck]:
        """Return the line of `/readyz?verbose`; it is not required, because the last certificate is still served."""
        message = f"not in use: {self._error}" if self._error else "in use"
        return [HealthCheck("certificate files", not self._error, message, required=False)]

    async def reload_if_changed(self) -> None:
        """Load the files again if they changed."""
        fingerprint = self._files.fingerprint()
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        try:
            pair = self._files.read()
            replace_certificate(self._context, pair)
        except OSError as error:
            self._reject(f"cannot be read ({error.strerror})")
        except CertificateError as error:
            self._reject(str(error))
        else:
            self._error = ""
            self._telemetry.record_certificate_loaded(expiry_of(pair.certificate))

    def _reject(self, error: str) -> None:
        self._error = error
        self._telemetry.record_certificate_rejected(error)
