"""Which clients may call, read from files that are reloaded when they change.

Rules are never switched off while a server runs: files that cannot be read, or are gone, keep the last valid rules.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from webhook.telemetry.logs import StructuredLogger
from webhook.web.health import HealthCheck
from webhook.web.tls import CertificateError, ClientCertificateRules, FileReloader, verify_clients


class ClientRuleFiles(NamedTuple):
    """The files of the rules, and the name that needs none.

    Attributes:
        authorities: The certificate authorities of the clients, PEM.
        name: The required name; "" for the content of `name_file`.
        name_file: A file with the required name; without it any name is accepted.
        optional: True if all clients are accepted while there is no file of authorities, and until one presents a
            certificate of these.
    """

    authorities: Path
    name: str = ""
    name_file: Path | None = None
    optional: bool = False

    def read(self) -> ClientCertificateRules | None:
        """Return the rules; None if all clients are accepted.

        Raises:
            CertificateError: the authorities are not PEM.
            OSError: a file cannot be read.
        """
        if self.optional and not self.authorities.exists():
            return None
        name = self.name
        if not name and self.name_file is not None and self.name_file.exists():
            name = self.name_file.read_text(encoding="utf-8").strip()
        authorities = self.authorities.read_text(encoding="ascii", errors="backslashreplace")
        rules = ClientCertificateRules(authorities, name, required=not self.optional)
        verify_clients(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), rules)
        return rules


class ClientRulesReloader(FileReloader):
    """Keeps the rules of a server up to date with their files."""

    def __init__(
        self,
        files: ClientRuleFiles,
        rules: ClientCertificateRules | None,
        apply: Callable[[ClientCertificateRules], None],
        is_required: Callable[[], bool],
        log: StructuredLogger,
    ) -> None:
        """Watch the files.

        Args:
            rules: What was read from them.
            apply: Called with the rules after each change.
            is_required: Returns whether clients need a certificate by now.
        """
        super().__init__(path for path in (files.authorities, files.name_file) if path is not None)
        self._files, self._rules, self._apply, self._log = files, rules, apply, log
        self._is_required = is_required

    def checks(self) -> list[HealthCheck]:
        """Return the line of `/readyz?verbose`; it is not required, because the last rules stay in use."""
        message = "any that can connect: there is no client CA"
        if self._rules is not None:
            name = f" named {self._rules.name}" if self._rules.name else ""
            until = "" if self._is_required() else "any that can connect, until one comes "
            message = f"{until}with a certificate of {self._files.authorities}{name}"
        return [HealthCheck("clients", not self.error, self.error or message, required=False)]

    def _reload(self) -> None:
        rules = self._files.read()
        if rules is None and self._rules is not None:
            raise CertificateError("is gone; restart to accept clients without a certificate")
        if rules is not None and rules != self._rules:
            self._rules = rules
            self._apply(rules)
            self._log.info("client authorities loaded", file=str(self._files.authorities), name=rules.name)

    def _reject(self, error: Exception) -> str:
        reason = f"{self._files.authorities}: {error}"
        self._log.error("client authorities not loaded, keeping the last valid ones", error=reason)
        return f"the last valid rules stay in use: {reason}"
