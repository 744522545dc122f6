"""TLS of the servers: TLS 1.2 or later, ECDHE with an AEAD, optional client certificates, and reloaded files.

Every change makes a new `SSLContext` for new handshakes, because a context cannot forget an authority, and one that was
given a key that does not match is broken from then on. Open connections keep theirs. Invalid files change nothing.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from webhook.certs.issuer import expiry_of
from webhook.errors import read_problem
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.health import HealthCheck
from webhook.well_known import CERTIFICATE_NOT_REQUIRED_YET

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

PeerCertificate = Mapping[str, Any]
"""A verified certificate, as returned by `ssl.SSLSocket.getpeercert`."""


class ClientCertificateRules(NamedTuple):
    """The clients that may call the admission and extender routes.

    An API server presents a certificate if its admission configuration has one for this webhook. Probes and Prometheus
    have none, so the handshake requests a certificate but does not require it: an invalid one fails the handshake, and
    the protected routes reject requests without one.

    Attributes:
        authorities: The certificate authorities of the clients, PEM.
        name: The required common name or DNS name; "" for any.
        required: False to accept all clients until one presents such a certificate. Rules that were given before any
            API server presents one then lock none out.
    """

    authorities: str
    name: str = ""
    required: bool = True

    def allows(self, certificate: PeerCertificate | None) -> bool:
        """Return whether the owner of this verified certificate may call."""
        return bool(certificate) and (not self.name or self.name in certificate_names(certificate or {}))


class CertificateError(Exception):
    """Certificate and key cannot be used."""


class PemPair(NamedTuple):
    """A certificate chain and its key, PEM."""

    certificate: bytes
    key: bytes


class CertificateFiles(NamedTuple):
    """The paths of certificate and key; a mounted Secret replaces both at once."""

    certificate: Path
    key: Path

    def read(self) -> PemPair:
        """Read both files."""
        return PemPair(self.certificate.read_bytes(), self.key.read_bytes())


def server_context(pair: PemPair, clients: ClientCertificateRules | None = None) -> ssl.SSLContext:
    """Return a server context; with `clients`, it verifies the certificates that clients present.

    Raises:
        CertificateError: certificate and key are not PEM or do not match, or the authorities are not PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _load_pair(context, pair)
    if clients is not None:
        verify_clients(context, clients)
    return context


def verify_clients(context: ssl.SSLContext, clients: ClientCertificateRules) -> None:
    """Verify the certificates that clients present.

    Raises:
        CertificateError: the authorities are not PEM.
    """
    try:
        context.load_verify_locations(cadata=clients.authorities)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        raise CertificateError(f"must be certificates of authorities ({reason})") from None
    context.verify_mode = ssl.CERT_OPTIONAL


class ServerTls:
    """The TLS of a server: its certificate, and the rules for its clients.

    Every method raises `CertificateError`, and changes nothing, if certificate, key or authorities cannot be used.

    Attributes:
        context: For the next handshake.
        clients: Which clients are accepted; None for all.
    """

    def __init__(self, pair: PemPair, clients: ClientCertificateRules | None = None) -> None:
        self._use(pair, clients)

    def replace_certificate(self, pair: PemPair) -> None:
        """Present another certificate from now on."""
        self._use(pair, self.clients)

    def replace_clients(self, clients: ClientCertificateRules | None) -> None:
        """Verify clients by other rules from now on."""
        self._use(self._pair, clients)

    def _use(self, pair: PemPair, clients: ClientCertificateRules | None) -> None:
        self.context = server_context(pair, clients)
        self._pair, self.clients = pair, clients


def certificate_names(certificate: PeerCertificate) -> Iterator[str]:
    """Return common names and DNS names.

    >>> subject, names = ((("commonName", "a"),),), (("DNS", "b"), ("URI", "c:d"))
    >>> list(certificate_names({"subject": subject, "subjectAltName": names}))
    ['a', 'b']
    """
    yield from (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")


class FileReloader(ABC):
    """Reads files again when they change. Files that cannot be used change nothing.

    Attributes:
        error: Why the present content of the files is not used; "" if it is used.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._fingerprint = self._read_fingerprint()
        self.error = ""

    async def reload_if_changed(self) -> None:
        """Read the files again if they changed."""
        fingerprint = self._read_fingerprint()
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        try:
            self._reload()
        except (OSError, CertificateError, UnicodeError) as error:
            self.error = self._reject(error)
        else:
            self.error = ""

    @abstractmethod
    def _reload(self) -> None:
        """Read and use the files."""

    @abstractmethod
    def _reject(self, error: Exception) -> str:
        """Report that the files are not used, and return the reason."""

    def _read_fingerprint(self) -> Hashable:
        """Return a value that changes with the files, also when they are created or deleted."""
        return tuple(_fingerprint(path) for path in self._paths)


class CertificateReloader(FileReloader):
    """Keeps the certificate of a server up to date with its files."""

    def __init__(self, files: CertificateFiles, tls: ServerTls, telemetry: ServerTelemetry) -> None:
        super().__init__(files)
        self._files, self._tls, self._telemetry = files, tls, telemetry

    def checks(self) -> list[HealthCheck]:
        """Return the line of `/readyz?verbose`; it is not required, because the last certificate is still served."""
        message = f"not in use: {self.error}" if self.error else "in use"
        return [HealthCheck("certificate files", not self.error, message, required=False)]

    def _reload(self) -> None:
        pair = self._files.read()
        self._tls.replace_certificate(pair)
        self._telemetry.record_certificate_loaded(expiry_of(pair.certificate))

    def _reject(self, error: Exception) -> str:
        reason = read_problem(error) if isinstance(error, OSError) else str(error)
        self._telemetry.record_certificate_rejected(reason)
        return reason


def _fingerprint(path: Path) -> Hashable:
    try:
        stat = path.stat()
    except OSError as error:
        return ("missing", error.errno)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _load_pair(context: ssl.SSLContext, pair: PemPair) -> None:
    """Load a pair through temporary private files, because OpenSSL loads certificates only from files."""
    with TemporaryDirectory(prefix="rightslice-") as folder:
        files = CertificateFiles(Path(folder, "tls.crt"), Path(folder, "tls.key"))
        for path, content in zip(files, pair, strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        try:
            context.load_cert_chain(files.certificate, files.key, password=_reject_encrypted_key)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "not PEM"
            raise CertificateError(f"certificate and key cannot be used ({reason})") from None


def _reject_encrypted_key() -> str:
    raise ValueError("the key is encrypted")


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
            until = "" if self._is_required() else f"{CERTIFICATE_NOT_REQUIRED_YET} "
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
