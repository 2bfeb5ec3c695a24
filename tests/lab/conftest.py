"""What all tests of the laboratory share."""

import functools
import signal

import pytest

# The laboratory is imported where it is used: tests on a GPU also run where its dependencies are not installed.


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """A shell makes what it starts in the background deaf to Ctrl-C, and so its children: here they have to hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def coarse_pictures():
    """Pictures have a quarter of their dots, and are made sooner; all else in them is as large as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contmax_lab.drawing._DOTS_PER_INCH", 80)
        yield


@pytest.fixture(scope="session", autouse=True)
def utterances_are_read_once():
    """Their files, which are text, are read for every training and every model that is opened."""
    with pytest.MonkeyPatch.context() as patch:
        from contmax_lab.data import _packaged

        patch.setattr(_packaged, "_read_series", functools.cache(_packaged._read_series))
        yield


@pytest.fixture
def contmax(capsys):
    """Runs the command; gives exit code, output and the lines of errors."""
    from contmax_lab.cli import main

    def run(*arguments):
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return run


@pytest.fixture
def config(tmp_path):
    """A YAML file of a training that takes no time."""
    from weather import tiny_recipe

    from contmax_lab import recipes

    path = tmp_path / "tiny.yaml"
    path.write_text(recipes.as_yaml(tiny_recipe(tmp_path)))
    return path


@pytest.fixture
def trained_here(monkeypatch):
    """Processes of this machine train in this one: to start them takes longer. How many were asked for, each time."""
    from here import Here

    from contmax_lab.workers import LocalProcesses

    asked = []

    def opened(workers):
        asked.append(workers.jobs)
        return Here().open()

    monkeypatch.setattr(LocalProcesses, "open", opened)
    return asked


@pytest.fixture
def sketched(monkeypatch):
    """Pictures of reports are drawn, but not made into files, which nobody looks at and which take most of the time."""
    from contmax_lab.drawing import LIGHT

    def sketch(draw):
        assert draw(LIGHT).axes
        return b"light", b"dark"

    monkeypatch.setattr("contmax_lab.report.rendered_twice", sketch)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database of searches that holds none: to make its tables takes longer than a search without trainings."""
    import optuna

    path = tmp_path_factory.mktemp("database") / "empty.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def explorer_runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def explorer_port(explorer_runs):
    from explorer_server import serving

    with serving(explorer_runs) as number:
        yield number


@pytest.fixture
def opened(chromium, explorer_port, left_pages):
    """Address → page; whatever it complains of, or asks of others, fails the test."""
    from chromium import Visits

    visits, home = Visits(chromium, left_pages), f"http://127.0.0.1:{explorer_port}"

    def open_page(address, **options):
        return visits.open(address if "://" in address else home + address, **options)

    open_page.expected = []
    yield open_page
    visits.leave()
    # The browser itself notes every refusal of the server.
    assert [text for text in visits.complaints if not any(status in text for status in open_page.expected)] == []
    own = ("file:", "data:", "blob:", "about:", f"{home}/")
    assert [url for url in visits.requests if not url.startswith(own)] == []
