"""Every test of the maps runs twice: with the compiled kernels, and with the torch reference alone."""

import pytest

from contmax import _backend


@pytest.fixture(autouse=True, params=["torch", "compiled"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(_backend.NUMBA, "works", False)
    elif not _backend.numba_works():
        pytest.skip("numba is not installed: pip install 'contmax[cpu]'")
    return request.param
