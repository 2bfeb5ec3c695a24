"""What tests of kernels share."""

import pytest


@pytest.fixture
def lists(monkeypatch):
    """The lists that every call saves for its backward pass."""
    from contmax.kernels.attention import _gpu_attention  # only where Triton's interpreter has been chosen

    made = []
    attend = _gpu_attention.attend

    def noted(*arguments):
        attended = attend(*arguments)
        made.append(_gpu_attention.AttentionLists(*attended[1:]))
        return attended

    monkeypatch.setattr(_gpu_attention, "attend", noted)
    return made
