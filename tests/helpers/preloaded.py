"""What the server of child processes imports once (`processes.py`). It opens no database and starts no thread."""

import importlib
import pkgutil

import hypothesis
import pytest

import fdbqueue.engine.embedded
import fdbqueue.layers

for _module in pkgutil.iter_modules(fdbqueue.layers.__path__, "fdbqueue.layers."):
    importlib.import_module(_module.name)

__all__ = ["fdbqueue", "hypothesis", "pytest"]
