"""Every module under vmap, on the CPU and in Triton's interpreter: arguments, closures and cotangents."""

import pytest

from transform_checks import CASES, CHECKS, Tried, modules_without_a_case

checks = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("assert_"))


def test_every_module_is_in_the_list():
    assert not modules_without_a_case()


@pytest.mark.parametrize("name", CASES)
@checks
def test_on_the_cpu(name, check):
    check(Tried(name, "cpu"))


@pytest.mark.parametrize("name", CASES)
@checks
def test_by_triton(name, check, triton_takes_cpu_tensors):
    check(Tried(name, "cpu"))
