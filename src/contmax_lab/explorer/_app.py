"""The addresses of the server: pages, their files, and questions about texts and images."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from contmax_lab.errors import LabError
from contmax_lab.explorer._answers import Answers, Forgotten
from contmax_lab.explorer._guard import App, Guard
from contmax_lab.explorer._pages import ROOMS, assets, served_page

#: Characters of a text.
MOST_CHARACTERS = 200_000
#: Seconds for one question.
TIME_LIMIT = 30.0
# Questions that wait for the one that is being answered.
_MOST_WAITING = 8
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/bmp", "image/gif", "image/webp", "image/tiff")
_KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

Name = Annotated[str, Field(max_length=400)]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Axis = Annotated[float, Field(ge=0.005, le=2, allow_inf_nan=False)]

Answer = TypeVar("Answer")


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
        # Whoever has waited too long goes; the question still counts until it is done.
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), TIME_LIMIT)
        except TimeoutError:
            raise HTTPException(
                503, f"this took longer than {TIME_LIMIT:.0f} seconds; pass something shorter"
            ) from None

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            # Nobody may be left to hear it.
            future.exception()


def make_app(runs: Path, port: int, models: Sequence[Path] = ()) -> App:
    """The server as an ASGI application.

    Args:
        runs: folder below which runs and exported models lie.
        port: that it is asked on.
        models: folders of exported models elsewhere.
    """
    # Neither the pages of documentation, which load scripts from elsewhere, nor what they show.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(app)
    _add_questions(app, Answers(runs, models), _Worker())
    _add_complaints(app)
    return Guard(app, port)


def _add_pages(app: FastAPI) -> None:
    pages = {room.address: served_page(room) for room in ROOMS}
    for address, page in pages.items():
        app.add_api_route(address, lambda page=page: HTMLResponse(page), methods=["GET", "HEAD"])

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
            raise HTTPException(
                415, f"{kind[:40] or 'a file of no type'} is no image; pass PNG, JPEG, BMP, GIF, WebP or TIFF"
            )
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
    async def lab(request: Request, error: LabError) -> Response:
        return complain(422, str(error))

    @app.exception_handler(LookupError)
    async def missing(request: Request, error: LookupError) -> Response:
        return complain(404, str(error.args[0]) if error.args else "there is no such thing")

    @app.exception_handler(Forgotten)
    async def forgotten(request: Request, error: Forgotten) -> Response:
        return complain(410, str(error))

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
