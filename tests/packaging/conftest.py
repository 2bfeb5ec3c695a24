import pytest
from built import BareEnvironment, build


@pytest.fixture(scope="session")
def distributions(tmp_path_factory):
    for needed in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        pytest.importorskip(needed, reason="to build the package: pip install 'contmax[test]'")
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(distributions, tmp_path_factory):
    pytest.importorskip("pip")
    return BareEnvironment(tmp_path_factory.mktemp("bare"), distributions[0])
