"""Every module under vmap, on the CPU and in Triton's interpreter: arguments, closures and cotangents."""

import pytest

from transform_checks import CASES, CHECKS, Tried, modules_without_a_case


def test_every_module_is_in_the_list():
    assert not modules_without_a_case()


def check_all(name):
    tried = Tried(name, "cpu")
    for check in CHECKS:
        check(tried)


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name):
    check_all(name)


@pytest.mark.parametrize("name", CASES)
def test_by_triton(name, triton_takes_cpu_tensors):
    check_all(name)
