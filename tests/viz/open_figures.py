"""Figures of one test are closed before the next."""

import pytest


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")
