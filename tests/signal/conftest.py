"""A fixture of the tests of continuous attention's way for the commonest calls."""

import pytest

from contmax.signal import _fused_context


@pytest.fixture
def taken(monkeypatch):
    """The calls that went this way."""
    calls, applied = [], _fused_context._apply
    monkeypatch.setattr(_fused_context, "_apply", lambda *arguments: calls.append(arguments) or applied(*arguments))
    return calls
