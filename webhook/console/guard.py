"""Checks of every request, and the headers of every response.

The console listens on loopback and reads with the caller's credentials. So a page of another site must not reach it
under a name of its own (DNS rebinding), frame it, or send it forms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from webhook.report.console.page import SECURITY

MAX_BODY_BYTES = 256 * 1024
"""Bytes of a form: a pod or a policy that someone pastes."""

MAX_QUERY_LETTERS = 2_000
READ_METHODS = frozenset({"GET", "HEAD"})

HEADERS = {
    "Content-Security-Policy": SECURITY,
    "Referrer-Policy": "no-referrer",
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
    """Reject what is not addressed to this server, and give every response the headers."""
    try:
        reject_foreign_request(request)
        response = await handler(request)
    except web.HTTPException as error:
        response = error
    response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
    if isinstance(response, web.HTTPException):
        raise response
    return response


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
