"""A plain HTTP client of an API server, independent of the program under test."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Json = dict[str, Any]

SECONDS = 600
"""The deadline of a request, as of the API server: deleting a thousand pods takes minutes on a busy machine."""

PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class RefusedError(Exception):
    """The API server rejected a request.

    Attributes:
        status: The HTTP status.
        message: The API server's message.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message


class Client:
    """Requests as one user, each with a deadline and its own connection, so a restart breaks no later request.

    Raises:
        RefusedError: from every method, for every response that is not a 2xx.
        OSError: from every method, if there is no response.
    """

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self._url = url
        self._token = token
        context = ssl.create_default_context(cafile=str(ca))
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def text(self, path: str) -> str:
        """Return the response to a path, as text."""
        return self._send("GET", path, None, "")

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        try:
            return self.text("/readyz") == "ok"
        except RefusedError:
            return False

    def get(self, path: str, **params: str) -> Json:
        """Return an object or a list of objects."""
        return self._json("GET", path, None, params)

    def exists(self, path: str) -> bool:
        """Return whether the object exists."""
        try:
            self.get(path)
        except RefusedError as refusal:
            if refusal.status != 404:
                raise
            return False
        return True

    def create(self, path: str, body: Mapping[str, Any], **params: str) -> Json:
        """Create an object, and return it."""
        return self._json("POST", path, body, params)

    def replace(self, path: str, body: Mapping[str, Any], **params: str) -> Json:
        """Replace an object, and return it."""
        return self._json("PUT", path, body, params)

    def patch(self, path: str, body: Any, kind: str = "merge", **params: str) -> Json:
        """Patch an object, and return it; `kind` is a key of PATCHES."""
        return self._json("PATCH", path, body, params, PATCHES[kind])

    def delete(self, path: str, **params: str) -> Json:
        """Delete an object, and return the response."""
        return self._json("DELETE", path, None, params)

    def _json(
        self, method: str, path: str, body: Any, params: Mapping[str, str], kind: str = "application/json"
    ) -> Json:
        query = f"?{urlencode(params)}" if params else ""
        answer: Json = json.loads(self._send(method, path + query, body, kind))
        return answer

    def _send(self, method: str, path: str, body: Any, kind: str) -> str:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json, */*"}
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                text: str = response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(error.code, _sentence(error.read().decode())) from None
        return text


def _sentence(text: str) -> str:
    """Return the message of a Status, or the text itself if it is not a Status."""
    try:
        message: str = json.loads(text)["message"]
    except (ValueError, LookupError, TypeError):
        return text
    return message
