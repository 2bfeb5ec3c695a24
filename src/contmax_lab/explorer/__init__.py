"""The explorer: a local page to look at densities, at maps of scores, and at where models look."""

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.errors import LabError
from contmax_lab.explorer._pages import export as export


def serve(runs: Path, port: int, models: Sequence[Path] = (), *, open_browser: bool = True) -> None:
    """Serve the explorer until Ctrl-C; see ``contmax explore``.

    Args:
        runs: folder below which runs and exported models lie; it need not exist.
        port: on 127.0.0.1, which only this machine can reach.
        models: folders of exported models elsewhere.
        open_browser: whether to open the page.

    Raises:
        LabError: if the port is taken.
    """
    # To export pages needs none of the packages of the server.
    import uvicorn

    from contmax_lab.explorer._app import AnnouncingServer, make_app

    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            ours.bind(("127.0.0.1", port))
        except OSError as error:
            raise LabError(f"port {port} cannot be used ({error.strerror}); pass another --port") from None
        app = make_app(runs, port, models)
        server = AnnouncingServer(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none"))
        server.address, server.open_browser = f"http://127.0.0.1:{port}", open_browser
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[ours])
