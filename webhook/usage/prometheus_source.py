"""Where Prometheus is, who we are to it, and how much of it is read."""

from __future__ import annotations

import ssl
from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from webhook.errors import UsageError, quote_text

HOUR = 3600
DAY = 24 * HOUR

DEFAULT_DAYS, MOST_DAYS = 7, 90
MAX_SECRET_BYTES = 64 * 1024
"""Bytes of a file with a token or a password."""


class PrometheusSource(msgspec.Struct, frozen=True):
    """One Prometheus, or something that answers as it does (Thanos, Mimir, VictoriaMetrics).

    Attributes:
        url: Up to and without `/api/v1`.
        ca: PEM file of the authorities that its certificate is checked against; "": those of the system.
        token: File of a bearer token, read anew for each refresh.
        user, password: Basic auth: a name, and the file of its password.
        selector: Matchers that every query gets, such as `cluster="a"`.
        days: How far back is looked.
        call_seconds: The most that one query may take.
        seconds: The most that all of them may take together.
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
        """The URL that paths are appended to.

        Raises:
            UsageError: it is none.
        """
        return parse_base_url(self.url)

    def check(self) -> None:
        """Look at all of it, without asking anybody.

        Raises:
            UsageError: something of it cannot be used.
        """
        if not 1 <= self.days <= MOST_DAYS:
            raise UsageError(f"--prometheus-days: must be 1 to {MOST_DAYS}, found {self.days}. Write {DEFAULT_DAYS}")
        self.tls_context()
        self.authorization_header()

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context; None for plain HTTP.

        Raises:
            UsageError: the authorities cannot be used.
        """
        if not self.base_url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"{self.ca}: must be a PEM file of authorities ({error.strerror or error})") from error

    def authorization_header(self) -> str:
        """The Authorization header, "" where there is none.

        Raises:
            UsageError: a file with a secret cannot be used.
        """
        if self.token and (self.user or self.password):
            raise UsageError(
                "--prometheus-token-file and --prometheus-user: must not be given together, found both. Write only one"
            )
        if self.token:
            return f"Bearer {read_secret_file(self.token)}"
        if bool(self.user) != bool(self.password):
            raise UsageError("--prometheus-user and --prometheus-password-file: must be given together, found one")
        if self.user:
            return "Basic " + b64encode(f"{self.user}:{read_secret_file(self.password)}".encode()).decode("ascii")
        return ""


def parse_base_url(url: str) -> str:
    """A URL without the slash at its end.

    Raises:
        UsageError: it is no URL of HTTP, or has credentials in it, which would get into logs.
    """
    write = "Write https://prometheus.monitoring.svc:9090"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.query or parts.fragment:
        raise UsageError(f"the address of Prometheus: must be a URL of http or https, found {quote_text(url)}. {write}")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the address of Prometheus: must be without credentials. {write}, --prometheus-user NAME "
            "and --prometheus-password-file FILE"
        )
    return url.rstrip("/")


def read_secret_file(file: str) -> str:
    """The first line of a file with a secret, which never gets into a message.

    Raises:
        UsageError: it cannot be read, or holds none.
    """
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MAX_SECRET_BYTES).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: must hold one line of ASCII") from error
    if not text or not text.isprintable():
        raise UsageError(f"{file}: must hold one line of ASCII, found {'nothing' if not text else 'more'}")
    return text
