"""Where the API server is and who we are: a kubeconfig with its exec plug-ins, or a pod's service account.

`kubernetes.aio` reads the one, `incluster` the other. Here it becomes an address, a TLS context and a header that
are read again when they rotate: a service account's token every minute, an exec plug-in's when it is about to end,
and everything after a 401 or a handshake that failed. Proxies of the environment are not looked at; a kubeconfig's
`proxy-url` is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webhook.errors import AccessError, shorten_text

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration
from contextlib import suppress
from time import monotonic

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""How long a token counts as read; the kubelet renews it long before its end."""


class ServiceAccount:
    """What is read of it, by the names that `kubernetes.aio` gives to the same things.

    Raises:
        OSError, ValueError: it is not there, or not whole.
    """

    ca_cert_data = cert_file = key_file = tls_server_name = proxy = None
    verify_ssl = True

    def __init__(self) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert = str(SERVICE_ACCOUNT_DIR / "ca.crt")
        self._token = SERVICE_ACCOUNT_DIR / "token"
        self._read_at = float("-inf")
        self.api_key: dict[str, str] = {}
        self._read_token()
        if not Path(self.ssl_ca_cert).is_file():
            raise ValueError(f"{self.ssl_ca_cert}: must be there, found nothing")

    def refresh_api_key_hook(self, _configuration: object) -> None:
        """Read the token again, if it was read a while ago. One that cannot be read is not worse than the last."""
        if monotonic() >= self._read_at + TOKEN_SECONDS:
            with suppress(OSError, ValueError):
                self._read_token()

    def _read_token(self) -> None:
        token = self._token.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{self._token}: must hold a token, found nothing")
        self.api_key, self._read_at = {"BearerToken": f"bearer {token}"}, monotonic()


READ_SECONDS = 30.0
"""The most that reading may take; an exec plug-in may ask a cloud."""

EXPIRY_MARGIN = timedelta(minutes=5)
"""How long before its end an exec plug-in's token is asked for anew."""

NOT_A_KUBECONFIG = "must be a kubeconfig: one YAML map with clusters, contexts and users"
DEFAULT_KUBECONFIG = "~/.kube/config"
CONFIGURE_HINT = (
    f"Write --kubeconfig FILE, set KUBECONFIG, put one at {DEFAULT_KUBECONFIG}, or run in a pod with a service account"
)


class ClusterAccess:
    """How to reach one API server; `read` it before anything else.

    Attributes:
        server: Its URL without a path.
        tls: The context for it, None for plain HTTP.
        server_name: The name that its certificate must bear where that is not the URL's.
        proxy: URL of a proxy on the way, or None.
    """

    server: str
    tls: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Choose where to read.

        Args:
            kubeconfig: A file, or several parted by colons. None: KUBECONFIG, then in a pod its service
                account, then `~/.kube/config`.
            context: Name of a context in it; None: its current one.

        Raises:
            AccessError: none of these is there.
        """
        self._files = _find_kubeconfig(kubeconfig, context)
        self._context = context
        self._configuration: Configuration | ServiceAccount | None = None
        self._loader: Any = None
        self._lock = asyncio.Lock()

    async def read(self) -> ClusterAccess:
        """Read address, authorities and credentials.

        Raises:
            AccessError: they are not there, or cannot be used.
        """
        source = self._files or "the service account of this pod"
        try:
            with _collect_loader_errors() as said:
                configuration, loader = await asyncio.wait_for(self._load(), READ_SECONDS)
            tls = build_ssl_context(configuration)
        except TimeoutError as error:
            raise AccessError(f"{source}: must be read within {READ_SECONDS:g} s; an exec plug-in hangs") from error
        except Exception as error:  # whatever a file that a stranger wrote makes of its reader
            raise AccessError(f"{source}: {_describe_load_error(error)}. {CONFIGURE_HINT}") from error
        if said:
            raise AccessError(f"{source}: {said[0]}")
        self.server, self.tls = configuration.host.rstrip("/"), tls
        self.server_name, self.proxy = configuration.tls_server_name, configuration.proxy
        self._configuration, self._loader = configuration, loader
        return self

    async def _load(self) -> tuple[Configuration | ServiceAccount, Any]:
        """The configuration, and the kubeconfig's loader, which knows when a plug-in's token ends."""
        if not self._files:
            return ServiceAccount(), None
        from kubernetes.aio import config  # half a second and 48 MiB: only who needs it pays
        from kubernetes.aio.client import Configuration

        configuration = Configuration()
        loader = await config.load_kube_config(
            self._files, self._context, client_configuration=configuration, persist_config=False
        )
        return configuration, loader

    async def authorization(self) -> str:
        """The Authorization header of the next call; "" where a client certificate says who we are.

        Raises:
            AccessError: it had to be read anew, and cannot be.
        """
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None and expiry - EXPIRY_MARGIN <= datetime.now(UTC):
            await self.reload(self._token())
        elif self._configuration is not None and self._configuration.refresh_api_key_hook is not None:
            self._configuration.refresh_api_key_hook(self._configuration)
        return self._token()

    async def reload(self, refused: str) -> None:
        """Read everything anew, unless somebody else has since the header `refused` was given.

        Raises:
            AccessError: see `read`.
        """
        async with self._lock:
            if refused == self._token():
                await self.read()

    def _token(self) -> str:
        keys = self._configuration.api_key if self._configuration is not None else {}
        return str(keys.get("BearerToken", "")).strip()


def _find_kubeconfig(kubeconfig: str | None, context: str | None) -> str:
    """The kubeconfig to read; "" for the service account of this pod."""
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    if named:
        if not any(Path(name).expanduser().is_file() for name in named.split(os.pathsep)):
            raise AccessError(f"{named}: must be a kubeconfig file, found none. {CONFIGURE_HINT}")
        return named
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return ""
    if not Path(DEFAULT_KUBECONFIG).expanduser().is_file():
        raise AccessError(f"a live cluster: must be told where it is, found nothing. {CONFIGURE_HINT}")
    return DEFAULT_KUBECONFIG


def _describe_load_error(error: Exception) -> str:
    """What the loader found, where its own words are those of Python or of a parser."""
    if isinstance(error, TypeError | AttributeError):
        return NOT_A_KUBECONFIG
    said = " ".join(str(error).split())
    parsing = isinstance(error, UnicodeDecodeError) or type(error).__module__.startswith("yaml.")
    return shorten_text(f"{NOT_A_KUBECONFIG}, found: {said}" if parsing else str(error), 500)


def build_ssl_context(configuration: Configuration | ServiceAccount) -> ssl.SSLContext | None:
    """The TLS context that a configuration asks for."""
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    # Python 3.13 asks of an authority what Go does not, and what many clusters' authorities lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _collect_loader_errors() -> Iterator[list[str]]:
    """What the loader logs as an error instead of raising it: an exec plug-in that fails."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(shorten_text(record.getMessage(), 500))

    logger, ear = logging.getLogger("kubernetes.aio.config.kube_config"), Ear(logging.ERROR)
    logger.addHandler(ear)
    before, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(ear)
        logger.propagate = before
