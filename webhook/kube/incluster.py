"""A pod's service account: where the API server is, whom to trust, and a token that the kubelet renews.

`kubernetes.aio` reads it too, and takes 48 MiB of memory to import; a pod of ours does without that library.

Source: client-go rest.InClusterConfig.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
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
