"""The server: who may ask, its addresses, its pages and their files, and questions about texts and images."""

import asyncio
import socket
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contmax_lab.errors import LabError
from contmax_lab.explorer._answers import Answers, Forgotten
from contmax_lab.explorer._pages import ROOMS, assets, served_page

#: Characters of a text.
MOST_CHARACTERS = 200_000
#: Seconds for one question.
TIME_LIMIT = 30.0
# Most questions that may wait at once.
_MOST_WAITING = 8
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/bmp", "image/gif", "image/webp", "image/tiff")
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
#: Bytes of a request; an image may have as many.
MOST_BYTES = 8_000_000
_HEADERS = {
    # Only our own files, no inline script or style; other pages may not frame this one or receive its data.
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

Name = Annotated[str, Field(max_length=400)]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Axis = Annotated[float, Field(ge=0.005, le=2, allow_inf_nan=False)]

Answer = TypeVar("Answer")


class Guard:
    """Refuses requests by other hosts (DNS rebinding), by other origins, and of too many bytes."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        refused = self._refusal(scope["method"], headers)
        if refused:
            status, problem = refused
            await JSONResponse({"error": problem}, status)(scope, receive, send_with_headers)
            return
        taken = 0

        async def receive_little() -> Message:
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
        # Browsers send sec-fetch-site even without an Origin; to follow a link to the page is allowed.
        is_link = headers.get("sec-fetch-mode") == "navigate"
        is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_link
        if is_foreign or (origin is not None and origin.lower() not in self._origins):
            return 403, "another page has asked for this; only the explorer's own page may"
        if method not in ("GET", "HEAD", "POST"):
            return 405, f"{method[:20]} is not understood here"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return _too_large()
        return None


def _too_large() -> tuple[int, str]:
    return 413, f"that is more than {MOST_BYTES // 1_000_000} MB; pass something smaller"


class TextQuestion(BaseModel):
    """A text to be read."""

    model: Name
    text: str


class ExampleQuestion(BaseModel):
    """An example to be looked at."""

    model: Name
    number: Annotated[int, Field(ge=0, le=10_000)]


class IntervalQuestion(BaseModel):
    """Where to look in a text."""

    look: Name
    low: Unit
    high: Unit


class EllipseQuestion(BaseModel):
    """Where to look in an image: row and column of the centre, half-axes, and the angle of the first axis."""

    look: Name
    centre: tuple[Unit, Unit]
    axes: tuple[Axis, Axis]
    angle: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]


class _Worker:
    """One thread that answers, one question after the other, each within the time limit."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explorer")
        self._waiting = 0

    async def do(self, work: Callable[[], Answer]) -> Answer:
        if self._waiting >= _MOST_WAITING:
            raise HTTPException(503, "too many questions at once; try again in a moment")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # A question that nobody waits for any more still counts until it is answered.
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), TIME_LIMIT)
        except TimeoutError:
            told = f"this took longer than {TIME_LIMIT:.0f} seconds; pass something shorter"
            raise HTTPException(503, told) from None

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            # Marks the exception as seen, since the request may be gone.
            future.exception()


class AnnouncingServer(uvicorn.Server):
    """Prints its address as soon as it answers, and opens the page."""

    address = ""
    open_browser = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the server when it listens."""
        await super().startup(sockets)
        print(f"{self.address} (Ctrl-C ends it)", flush=True)
        if self.open_browser:
            webbrowser.open(self.address)


def make_app(runs: Path, port: int, models: Sequence[Path] = ()) -> ASGIApp:
    """The server on a port as an ASGI application; `runs` and `models` are those of `Models`."""
    # FastAPI's pages of documentation would load scripts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(app)
    _add_questions(app, Answers(runs, models), _Worker())
    _add_complaints(app)
    return Guard(app, port)


def _add_pages(app: FastAPI) -> None:
    for room in ROOMS:
        page = served_page(room)
        app.add_api_route(room.address, lambda page=page: HTMLResponse(page), methods=["GET", "HEAD"])

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in assets():
            raise HTTPException(404, "there is no such file")
        return Response(assets()[name], media_type=_KINDS[Path(name).suffix])


def _add_questions(app: FastAPI, answers: Answers, worker: _Worker) -> None:
    @app.get("/api/models")
    async def models() -> Any:
        return await worker.do(answers.models)

    @app.get("/api/examples")
    async def examples(model: Name) -> Any:
        return await worker.do(lambda: answers.examples(model))

    @app.post("/api/text")
    async def text(asked: TextQuestion) -> Any:
        if len(asked.text) > MOST_CHARACTERS:
            raise HTTPException(413, f"the text has {len(asked.text):,} characters; pass at most {MOST_CHARACTERS:,}")
        return await worker.do(lambda: answers.text(asked.model, asked.text))

    @app.post("/api/image")
    async def image(request: Request, model: Name) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _IMAGE_TYPES:
            got = kind[:40] or "a file of no type"
            raise HTTPException(415, f"{got} is no image; pass PNG, JPEG, BMP, GIF, WebP or TIFF")
        content = await request.body()
        return await worker.do(lambda: answers.image(model, content))

    @app.post("/api/example")
    async def example(asked: ExampleQuestion) -> Any:
        return await worker.do(lambda: answers.example(asked.model, asked.number))

    @app.post("/api/interval")
    async def interval(asked: IntervalQuestion) -> Any:
        if asked.high - asked.low < 1e-6:
            raise HTTPException(422, "the interval is empty; pass low < high")
        return await worker.do(lambda: answers.interval(asked.look, asked.low, asked.high))

    @app.post("/api/ellipse")
    async def ellipse(asked: EllipseQuestion) -> Any:
        return await worker.do(lambda: answers.ellipse(asked.look, asked.centre, asked.axes, asked.angle))


def _add_complaints(app: FastAPI) -> None:
    """Every problem is one sentence under the key ``error``."""

    def complain(status: int, problem: str) -> Response:
        return JSONResponse({"error": problem}, status)

    @app.exception_handler(LabError)
    @app.exception_handler(LookupError)
    @app.exception_handler(Forgotten)
    async def known(request: Request, error: Exception) -> Response:
        status = 422 if isinstance(error, LabError) else 410 if isinstance(error, Forgotten) else 404
        return complain(status, str(error.args[0]) if error.args else "there is no such thing")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return complain(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return complain(422, f"{where or 'the question'}: {first['msg']}")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return complain(500, "something went wrong; the terminal in which contmax explore runs says what")
