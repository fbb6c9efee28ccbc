"""What the tests of documents and sources share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.helpers.sources import nodes


@pytest.fixture(scope="module")
def parsed_once() -> Iterator[None]:
    """Keep the parsed sources until the module ends."""
    gc.disable()  # it would look through all nodes again and again
    yield
    nodes.cache_clear()
    gc.enable()
