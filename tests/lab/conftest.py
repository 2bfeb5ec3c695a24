"""What all tests of the laboratory share."""

import signal

import pytest

# The laboratory is imported where it is used: tests on a GPU also run where its dependencies are not installed.


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """A shell makes what it starts in the background deaf to Ctrl-C, and so its children: here they have to hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
