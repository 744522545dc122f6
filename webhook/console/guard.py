"""Checks of every request, and the headers of every response.

The console listens on loopback and reads with the caller's credentials. So a page of another site must not reach it
under a name of its own (DNS rebinding), frame it, or send it forms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from webhook.report.console.page import SECURITY

MAX_BODY_BYTES = 256 * 1024
"""Bytes of a form: a pod or a policy that someone pastes."""

MAX_QUERY_LETTERS = 2_000
FORM_TYPE = "application/x-www-form-urlencoded"
READ_METHODS = frozenset({"GET", "HEAD"})

HEADERS = {
    "Content-Security-Policy": SECURITY,
    "Referrer-Policy": "same-origin",  # browsers then send the header Origin with the console's own forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

HOSTS: web.AppKey[frozenset[str]] = web.AppKey("hosts")
"""Values that the header Host may have."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Return the values that the header Host may have on a server that listens on this address."""
    names = {"localhost", f"[{host}]" if ":" in host else host}
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


@web.middleware
async def check_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject what is not addressed to this server."""
    reject_foreign_request(request)
    return await handler(request)


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Give a response those headers that it does not set itself, also if its handler failed."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def reject_foreign_request(request: web.Request) -> None:
    """Raise the HTTP error of a request for another name, by another method, or from another site."""
    hosts = request.app[HOSTS]
    if request.headers.getall("Host", []) != [request.host] or request.host not in hosts:
        must = f"Host: must be {' or '.join(sorted(hosts))}"
        raise web.HTTPMisdirectedRequest(text=f"{must}. Open the address that rightslice ui printed\n")
    if len(request.rel_url.raw_query_string) > MAX_QUERY_LETTERS:
        raise web.HTTPRequestURITooLong(text=f"the query must have at most {MAX_QUERY_LETTERS} characters\n")
    if request.method not in READ_METHODS:
        _reject_foreign_form(request, hosts)


def _reject_foreign_form(request: web.Request, hosts: frozenset[str]) -> None:
    origins = request.headers.getall("Origin", [])
    if len(origins) != 1 or origins[0] not in {f"http://{host}" for host in hosts}:
        raise web.HTTPForbidden(text="Origin: must be this console: forms of other sites are rejected\n")


async def read_form(request: web.Request) -> Mapping[str, object]:
    """Return the fields of a form as the console's own pages send it. Raises the HTTP error of anything else."""
    is_plain = request.headers.get("Content-Encoding", "identity") == "identity"
    is_utf8 = (request.charset or "utf-8").lower() == "utf-8"
    if request.content_type != FORM_TYPE or not (is_plain and is_utf8):
        raise web.HTTPUnsupportedMediaType(text=f"Content-Type: must be {FORM_TYPE}, in UTF-8 and not compressed\n")
    try:
        return await request.post()
    except UnicodeDecodeError as error:
        raise web.HTTPBadRequest(text="the form must be UTF-8\n") from error
