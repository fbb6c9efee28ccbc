"""What people read of an error of the database."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fdbqueue import ClusterError, FDBError, StorageError
from fdbqueue.engine.cluster import import_binding
from fdbqueue.engine.errors import DESCRIPTIONS, NO_ANSWER, text_of, told


class BindingsError(FDBError):
    """An error as the binding has it, whose description is bytes."""

    @property
    def description(self) -> Any:
        return super().description.encode()


@pytest.mark.parametrize("kind", [FDBError, BindingsError])
def test_an_error_for_people_has_no_bytes_and_says_what_to_do(kind: type[FDBError]) -> None:
    assert told(kind(1031)) == NO_ANSWER
    assert told(kind(1020)) == f"{DESCRIPTIONS[1020]} (1020)."
    assert text_of(kind(1031)) == f"{DESCRIPTIONS[1031]} (1031)"
    assert told(StorageError("The disk is full.")) == "The disk is full."


def test_a_client_library_that_can_not_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def api_version(_: int) -> None:
        try:
            raise OSError("libfdb_c.so: file too short")
        except OSError:
            raise Exception("Unable to locate the FoundationDB API shared library!")  # noqa: B904 - as the binding

    fake: Any = SimpleNamespace(is_api_version_selected=lambda: False, api_version=api_version)
    monkeypatch.setitem(sys.modules, "fdb", fake)
    with pytest.raises(ClusterError, match=r"can't be loaded \(libfdb_c.so: file too short\)"):
        import_binding()
