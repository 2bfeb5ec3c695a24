"""What all tests of the laboratory share."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """A shell makes what it starts in the background deaf to Ctrl-C, and so its children: here they have to hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
