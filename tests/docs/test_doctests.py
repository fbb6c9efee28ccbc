"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import fdbqueue


def _modules() -> Iterator[str]:
    yield fdbqueue.__name__
    for module in pkgutil.walk_packages(fdbqueue.__path__, fdbqueue.__name__ + "."):
        if not module.name.endswith("__main__"):
            yield module.name


@pytest.mark.parametrize("name", list(_modules()))
def test_examples_in_docstrings_run_as_they_stand(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "pyarrow"):
            raise
        pytest.skip("PySpark is not installed: pip install 'fdbqueue[spark]'")

    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert found.failed == 0
