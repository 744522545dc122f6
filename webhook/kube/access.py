"""Address and credentials of the API server: from a kubeconfig with its exec plugins, or from a pod's service account.

`kubernetes.aio` reads kubeconfigs. It also reads service accounts, but its import takes 48 MiB, so `ServiceAccount`
does that here. Credentials are read again when they rotate: a service account's token every minute, an exec plugin's
token shortly before it expires, and everything after a 401 or a failed TLS handshake. Proxy environment variables are
ignored; a kubeconfig's `proxy-url` is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from webhook.errors import AccessError, quote_text, shorten_text
from webhook.model.pods import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""The interval for reading a service account's token; the kubelet renews it long before it expires."""

READ_SECONDS = 30.0
"""The time limit for reading credentials; an exec plugin may call a cloud."""

EXPIRY_MARGIN = timedelta(minutes=5)
"""Time before its expiry at which an exec plugin's token is renewed."""

NOT_A_KUBECONFIG = "must be a kubeconfig: one YAML map with clusters, contexts and users"
DEFAULT_KUBECONFIG = "~/.kube/config"
CONFIGURE_HINT = (
    f"Write --kubeconfig FILE, set KUBECONFIG, create {DEFAULT_KUBECONFIG}, or run in a pod with a service account"
)


class ServiceAccount:
    """A pod's service account, with the attribute names of `kubernetes.aio`'s Configuration.

    Source: client-go rest.InClusterConfig.

    Raises:
        OSError, ValueError: it is missing or incomplete.
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
            raise ValueError(f"{self.ssl_ca_cert}: must exist, found nothing")

    def refresh_api_key_hook(self, _configuration: object) -> None:
        """Read the token again after a minute; keep the last one if it cannot be read."""
        if monotonic() >= self._read_at + TOKEN_SECONDS:
            with suppress(OSError, ValueError):
                self._read_token()

    def _read_token(self) -> None:
        token = self._token.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{self._token}: must hold a token, found nothing")
        self.api_key, self._read_at = {"BearerToken": f"bearer {token}"}, monotonic()


class ClusterAccess:
    """Address and credentials of one API server; call `read` first.

    Attributes:
        server: The URL without a path.
        tls: The TLS context; None for plain HTTP.
        server_name: The name in the server's certificate, if it differs from the URL's.
        proxy: The URL of a proxy, or None.
        namespace: The namespace of the context, or of the service account's pod.
    """

    server: str
    tls: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None
    namespace: str

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Choose the source.

        Args:
            kubeconfig: A file, or several separated by colons. None: KUBECONFIG, then a pod's service account, then
                `~/.kube/config`.
            context: Name of a context; None: the current one.

        Raises:
            AccessError: there is none of these.
        """
        self._files = _find_kubeconfig(kubeconfig, context)
        self._context = context
        self._configuration: Configuration | ServiceAccount | None = None
        self._loader: Any = None
        self._lock = asyncio.Lock()

    async def read(self) -> ClusterAccess:
        """Read address, certificate authorities and credentials.

        Raises:
            AccessError: they are missing or invalid.
        """
        source = self._files or "the service account of this pod"
        try:
            with _collect_loader_errors() as errors:
                configuration, loader = await asyncio.wait_for(self._load(), READ_SECONDS)
            tls = build_ssl_context(configuration)
        except AccessError:
            raise
        except TimeoutError as error:
            raise AccessError(f"{source}: must be read within {READ_SECONDS:g} s; an exec plugin hangs") from error
        except Exception as error:  # the loader raises anything for a malformed file
            raise AccessError(f"{source}: {_describe_load_error(error)}. {CONFIGURE_HINT}") from error
        if errors:
            raise AccessError(f"{source}: {errors[0]}")
        self.server, self.tls = configuration.host.rstrip("/"), tls
        self.server_name, self.proxy = configuration.tls_server_name, configuration.proxy
        self._configuration, self._loader = configuration, loader
        self.namespace = _own_namespace() if loader is None else _context_namespace(loader.current_context)
        return self

    async def _load(self) -> tuple[Configuration | ServiceAccount, Any]:
        """Return the configuration, and the kubeconfig loader, which knows when an exec plugin's token expires."""
        if not self._files:
            return ServiceAccount(), None
        from kubernetes.aio import config  # imported only if needed: half a second and 48 MiB
        from kubernetes.aio.client import Configuration

        if self._context is not None:
            _check_context(self._context, self._files, config.list_kube_config_contexts(self._files)[0])
        configuration = Configuration()
        loader = await config.load_kube_config(
            self._files, self._context, client_configuration=configuration, persist_config=False
        )
        return configuration, loader

    async def authorization(self) -> str:
        """Return the Authorization header for the next call; "" with a client certificate."""
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None and expiry - EXPIRY_MARGIN <= datetime.now(UTC):
            await self.reload(self._token())
        elif self._configuration is not None and self._configuration.refresh_api_key_hook is not None:
            self._configuration.refresh_api_key_hook(self._configuration)
        return self._token()

    async def reload(self, rejected: str) -> None:
        """Read everything again, unless another task did since the header `rejected` was returned."""
        async with self._lock:
            if rejected == self._token():
                await self.read()

    def _token(self) -> str:
        keys = self._configuration.api_key if self._configuration is not None else {}
        return str(keys.get("BearerToken", "")).strip()


def _find_kubeconfig(kubeconfig: str | None, context: str | None) -> str:
    """Return the kubeconfig to read; "" for the service account of this pod."""
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    if named:
        if not any(Path(name).expanduser().is_file() for name in named.split(os.pathsep)):
            raise AccessError(f"{named}: must be a kubeconfig file, found none. {CONFIGURE_HINT}")
        return named
    if os.environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return ""
    if not Path(DEFAULT_KUBECONFIG).expanduser().is_file():
        raise AccessError(f"live cluster: a kubeconfig is required, found none. {CONFIGURE_HINT}")
    return DEFAULT_KUBECONFIG


def _own_namespace() -> str:
    """Return the namespace of this pod."""
    file = SERVICE_ACCOUNT_DIR / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else DEFAULT_NAMESPACE


def _context_namespace(context: Mapping[str, Any]) -> str:
    """Return the namespace that a context of a kubeconfig sets."""
    return str(context["context"].get("namespace") or DEFAULT_NAMESPACE)


def _check_context(name: str, source: str, contexts: Iterable[Mapping[str, Any]]) -> None:
    """Raise AccessError with the known contexts, unless the named one is among them."""
    known = sorted(str(each.get("name")) for each in contexts)
    if name not in known:
        listed = shorten_text(", ".join(known), 500)
        write = f"Write one of: {listed}" if known else "It has no contexts: name another file with --kubeconfig"
        raise AccessError(f"--context: must be a context of {source}, found {quote_text(name)}. {write}")


def _describe_load_error(error: Exception) -> str:
    if isinstance(error, TypeError | AttributeError):
        return NOT_A_KUBECONFIG
    message = " ".join(str(error).split())
    parsing = isinstance(error, UnicodeDecodeError) or type(error).__module__.startswith("yaml.")
    return shorten_text(f"{NOT_A_KUBECONFIG}, found: {message}" if parsing else str(error), 500)


def build_ssl_context(configuration: Configuration | ServiceAccount) -> ssl.SSLContext | None:
    """Return the TLS context for a configuration; None for plain HTTP."""
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    # Python 3.13 requires extensions of authorities that Go does not, and that many clusters' authorities lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _collect_loader_errors() -> Iterator[list[str]]:
    """Collect the errors that the loader logs instead of raising: those of exec plugins."""
    errors: list[str] = []

    class ErrorHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(shorten_text(record.getMessage(), 500))

    logger, handler = logging.getLogger("kubernetes.aio.config.kube_config"), ErrorHandler(logging.ERROR)
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
