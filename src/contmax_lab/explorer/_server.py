"""Starting the server, on this machine only."""

import contextlib
import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from contmax_lab.errors import LabError
from contmax_lab.explorer._app import make_app


class _Announcing(uvicorn.Server):
    """Says where it is as soon as it answers."""

    address = ""
    open_browser = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"{self.address} (Ctrl-C ends it)", flush=True)
        if self.open_browser:
            webbrowser.open(self.address)


def serve(runs: Path, port: int, models: Sequence[Path] = (), *, open_browser: bool = True) -> None:
    """Serve the explorer until Ctrl-C.

    Args:
        runs: folder below which runs and exported models lie; it need not exist.
        port: on 127.0.0.1, which only this machine can reach.
        models: folders of exported models elsewhere.
        open_browser: whether to open the page.

    Raises:
        LabError: if the port is taken.
    """
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ours.bind(("127.0.0.1", port))
        except OSError as error:
            raise LabError(f"port {port} cannot be used ({error.strerror}); pass another --port") from None
        app = make_app(runs, port, models)
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
        server = _Announcing(config)
        server.address, server.open_browser = f"http://127.0.0.1:{port}", open_browser
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[ours])
