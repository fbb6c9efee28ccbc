"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator

import pytest

import fdbqueue
import layers


def _modules() -> Iterator[str]:
    for package in (fdbqueue, layers):
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                yield module.name


@pytest.mark.parametrize("name", list(_modules()))
def test_examples_in_docstrings_run_as_they_stand(name: str) -> None:
    if name.startswith("fdbqueue.spark") and importlib.util.find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: pip install 'fdbqueue[spark]'")
    module = importlib.import_module(name)

    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert found.failed == 0
