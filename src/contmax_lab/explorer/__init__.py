"""The explorer: a local page to look at densities, at maps of scores, and at where models look."""

from collections.abc import Sequence
from pathlib import Path

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
    # Pages are exported without the packages of the server.
    from contmax_lab.explorer._server import serve as serve_until_stopped

    serve_until_stopped(runs, port, models, open_browser=open_browser)
