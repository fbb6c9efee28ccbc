"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import fdbqueue
import fdbqueue.layers


def _modules() -> Iterator[str]:
    yield fdbqueue.__name__
    for module in pkgutil.walk_packages(fdbqueue.__path__, fdbqueue.__name__ + "."):
        if not module.name.endswith("__main__"):
            yield module.name


@pytest.mark.parametrize("name", list(_modules()))
def test_examples_in_docstrings_run_unchanged(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "pyarrow"):
            raise
        pytest.skip("PySpark is not installed: pip install 'fdbqueue[spark]'")

    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert found.failed == 0


PUBLIC: list[Any] = [getattr(place, name) for place in (fdbqueue, fdbqueue.layers) for name in place.__all__]


@pytest.mark.parametrize("name", sorted({one.__module__ for one in PUBLIC if hasattr(one, "__module__")}))
def test_examples_of_public_names_can_be_pasted_into_an_empty_session(name: str) -> None:
    module = importlib.import_module(name)
    told = [module.__doc__]
    for one in PUBLIC:
        if getattr(one, "__module__", None) == name and (inspect.isclass(one) or inspect.isfunction(one)):
            told += [one.__doc__, *(getattr(member, "__doc__", None) for member in vars(one).values())]
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for number, doc in enumerate(told):
        if isinstance(doc, str) and ">>>" in doc:
            example = parser.get_doctest(inspect.cleandoc(doc), {}, f"{name} {number}", None, 0)
            assert runner.run(example).failed == 0
