"""Who may ask, and how much: the door of the server."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import HTTPException

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Bytes of a request; an image may have as many.
MOST_BYTES = 8_000_000

_HEADERS = {
    # Only our own files, no inline script or style, nothing to be framed in or sent elsewhere.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses what does not come from the page itself: other hosts (DNS rebinding), other origins, too many bytes.

    Args:
        app: behind the door.
        port: of the server.
    """

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        refused = self._refusal(scope["method"], headers)
        if refused:
            await _say(send_with_headers, *refused)
            return
        taken = 0

        async def receive_little() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BYTES:
                raise HTTPException(*_too_large())
            return message

        await self._app(scope, receive_little, send_with_headers)

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host.lower() not in self._hosts:
            return 403, "this page is only for the machine it runs on; open it by the address that was printed"
        if origin is not None and origin.lower() not in self._origins:
            return 403, "another page has asked for this; only the explorer's own page may"
        # Browsers say so even where they send no Origin; to follow a link to the page is allowed.
        fetched = headers.get("sec-fetch-site", "none")
        if fetched not in ("same-origin", "none") and headers.get("sec-fetch-mode") != "navigate":
            return 403, "another page has asked for this; only the explorer's own page may"
        if method not in ("GET", "HEAD", "POST"):
            return 405, f"{method[:20]} is not understood here"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return _too_large()
        return None


def _too_large() -> tuple[int, str]:
    return 413, f"that is more than {MOST_BYTES // 1_000_000} MB; pass something smaller"


async def _say(send: Send, status: int, problem: str) -> None:
    body = json.dumps({"error": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
