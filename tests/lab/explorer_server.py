"""The explorer on a port of its own, in a thread of the test."""

import contextlib
import http.client
import json
import socket
import threading
import time

from own_data import reviews


def tiny_text_run(folder):
    """A run of the task texts that has seen every review once."""
    from contmax_lab.cli import main

    table = reviews(folder / "reviews.csv", count=60)
    run = folder / "runs" / "inner" / "stars"
    data = ["--data.train", str(table), "--data.text", "review", "--data.label", "stars"]
    small = ["--training.epochs", "1", "--model.hidden_dim", "8", "--model.functions", "8"]
    main(["train", "texts", *data, *small, "--folder", str(run)])
    return run


@contextlib.contextmanager
def serving(runs, models=()):
    """The port of a server that is stopped at the end."""
    import uvicorn

    from contmax_lab.explorer._app import make_app

    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        app = make_app(runs, port, models)
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [ours]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield port
        finally:
            server.should_exit = True
            thread.join()


def asked(port, method, path, content=None, **headers):
    """Status, headers and JSON (or text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps(content) if isinstance(content, dict | list) else content
    kinds = {"content-type": "application/json"} if isinstance(content, dict | list) else {}
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host="host" in headers)
        length = {} if body is None else {"content-length": str(len(body.encode() if isinstance(body, str) else body))}
        for name, value in {**length, **kinds, **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body.encode() if isinstance(body, str) else body)
        response = connection.getresponse()
        text = response.read()
    given = {name.lower(): value for name, value in response.getheaders()}
    try:
        return response.status, given, json.loads(text)
    except ValueError:
        return response.status, given, text.decode()
