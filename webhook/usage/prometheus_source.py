"""Address, credentials and limits of a Prometheus to read."""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from webhook.errors import UsageError, quote_text, read_problem

HOUR = 3600
DAY = 24 * HOUR

DEFAULT_DAYS, MAX_DAYS = 7, 90
MAX_SECRET_BYTES = 64 * 1024
"""Size limit of a file with a token or password."""


class PrometheusEndpoint(NamedTuple):
    """An address with all that a connection needs.

    Attributes:
        base_url: URL without a trailing slash and without `/api/v1`.
        tls: TLS context; None for plain HTTP.
        authorization: The header of this name; "" for none.
        server_name: Name in the certificate, if it differs from the address.
        proxy: URL of an HTTP proxy.
    """

    base_url: str
    tls: ssl.SSLContext | None = None
    authorization: str = ""
    server_name: str | None = None
    proxy: str | None = None


class PrometheusSource(msgspec.Struct, frozen=True):
    """A Prometheus, or a compatible server (Thanos, Mimir, VictoriaMetrics).

    Attributes:
        url: Base URL, without `/api/v1`.
        ca: PEM file of CA certificates; "" for the system's.
        token: File of a bearer token, read for each load.
        user, password: Basic authentication: the name, and the file of the password.
        selector: Label matchers added to every query, such as `cluster="a"`.
        days: Look-back period.
        call_seconds: Time limit of one query.
        seconds: Time limit of a load.
    """

    url: str
    ca: str = ""
    token: str = ""
    user: str = ""
    password: str = ""
    selector: str = ""
    days: int = DEFAULT_DAYS
    call_seconds: float = 120.0
    seconds: float = 900.0

    @property
    def base_url(self) -> str:
        """The base URL without a trailing slash.

        Raises:
            UsageError: It is invalid.
        """
        return parse_base_url(self.url)

    def endpoint(self) -> PrometheusEndpoint:
        """Return how to reach it; secrets are read now.

        Raises:
            UsageError: The address, the CA file or the credentials are invalid.
        """
        return PrometheusEndpoint(self.base_url, self.tls_context(), self.authorization_header())

    def check(self) -> None:
        """Validate everything, without a request.

        Raises:
            UsageError: Something is invalid.
        """
        if not 1 <= self.days <= MAX_DAYS:
            raise UsageError(f"--prometheus-days: must be 1 to {MAX_DAYS}, found {self.days}. Write {DEFAULT_DAYS}")
        self.tls_context()
        self.authorization_header()

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for plain HTTP.

        Raises:
            UsageError: The CA file is invalid.
        """
        if not self.base_url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"{self.ca}: must be a PEM file of CA certificates ({error.strerror or error})") from error

    def authorization_header(self) -> str:
        """Return the Authorization header; "" without credentials.

        Raises:
            UsageError: A file with a secret is invalid.
        """
        if self.token and (self.user or self.password):
            raise UsageError(
                "--prometheus-token-file and --prometheus-user: must not be used together, found both. Leave one out"
            )
        if self.token:
            return f"Bearer {read_secret_file(self.token)}"
        if bool(self.user) != bool(self.password):
            raise UsageError("--prometheus-user and --prometheus-password-file: must be given together, found one")
        if self.user:
            return "Basic " + b64encode(f"{self.user}:{read_secret_file(self.password)}".encode()).decode("ascii")
        return ""


_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?")


def parse_base_url(url: str) -> str:
    """Validate a URL, and return it without a trailing slash.

    Raises:
        UsageError: It is not an HTTP URL, or contains credentials, which would get into logs.
    """
    write = "Write https://prometheus.monitoring.svc:9090"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.query or parts.fragment:
        found = f"must be an http or https URL, found {quote_text(url)}"
        write_host = f"Write http://{url}" if _HOST_AND_PORT.fullmatch(url) else write
        raise UsageError(f"the address of Prometheus: {found}. {write_host}")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the address of Prometheus: must not contain credentials. {write}, --prometheus-user NAME "
            "and --prometheus-password-file FILE"
        )
    return url.rstrip("/")


def read_secret_file(file: str) -> str:
    """Read the secret from a file. Messages never contain it.

    Raises:
        UsageError: The file is unreadable, or not one line of ASCII.
    """
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MAX_SECRET_BYTES).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"{file}: {read_problem(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: must hold one line of ASCII") from error
    if not text or not text.isprintable():
        raise UsageError(f"{file}: must hold one line of ASCII, found {'nothing' if not text else 'more'}")
    return text
