"""Every module under vmap on a GPU: arguments, closures and cotangents."""

import pytest

from cuda_checks import DEVICE
from transform_checks import CASES, CHECKS, Tried

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("assert_"))
def test_vmap(name, check):
    check(Tried(name, DEVICE))
