"""Where the tests' cluster comes from.

In this order: the cluster file named by FDBQUEUE_TEST_CLUSTER_FILE or FDB_CLUSTER_FILE; a container, when
Docker answers; none. Then tests run on the other engines, those of a cluster are skipped, and the run says how to
start one. Under FDBQUEUE_REQUIRE_CLUSTER=1 that is a failure, so that a CI which should have a cluster notices its
loss.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import gc
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fdbqueue.engine.cluster import ClusterDatabase

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "foundationdb/foundationdb:7.3.77"
HOW_TO_START = "start one with `docker compose up -d --wait fdb` and set FDB_CLUSTER_FILE=containers/fdb.cluster"
STARTED_WITHIN_SECONDS = 60.0
VARIABLES = ("FDBQUEUE_TEST_CLUSTER_FILE", "FDB_CLUSTER_FILE")


def missing() -> str | None:
    """Return why tests run without a cluster, and how to start one; None if there is one, or must be one."""
    if any(os.environ.get(variable) for variable in VARIABLES) or os.environ.get("FDBQUEUE_REQUIRE_CLUSTER") == "1":
        return None
    why_not = _why_no_docker()
    return None if why_not is None else f"no FoundationDB cluster ({why_not}): {HOW_TO_START}"


@contextlib.contextmanager
def find() -> Iterator[str]:
    """Yield a cluster file, for as long as its cluster is needed."""
    for variable in VARIABLES:
        given = os.environ.get(variable)
        if given:
            if not Path(given).is_file():
                pytest.fail(f"{variable} names {given}, which is no file")
            yield given
            return
    why_not = _why_no_docker()
    if why_not is None:
        with _container() as cluster_file:
            yield cluster_file
    elif os.environ.get("FDBQUEUE_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"FDBQUEUE_REQUIRE_CLUSTER=1, but there is no cluster ({why_not}): {HOW_TO_START}")
    else:
        pytest.skip(f"no FoundationDB cluster ({why_not}): {HOW_TO_START}")


def release(db: Any) -> tuple[int, ...]:
    """Return the version of FoundationDB that a database answers as: the embedded engine as 7.3."""
    if not isinstance(db, ClusterDatabase):
        return (7, 3)
    db.create_transaction()  # loads the client library
    import fdb

    told = fdb.impl._capi.fdb_get_client_version
    told.restype = ctypes.c_char_p
    return tuple(int(part) for part in told().split(b",")[0].split(b"."))


def _why_no_docker() -> str | None:
    try:
        import docker
    except ImportError:
        return "no cluster file in the environment, and testcontainers is not installed"
    with warnings.catch_warnings():
        # A client that can't connect leaves its socket to the garbage collector, which would complain in some test.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env(timeout=5)
            client.ping()
            client.close()
        except docker.errors.DockerException:
            return "no cluster file in the environment, and Docker does not answer"
        finally:
            gc.collect()
    return None


@contextlib.contextmanager
def _container() -> Iterator[str]:
    """Run a server in a container, published on loopback under the very address that it tells its clients."""
    from testcontainers.core.container import DockerContainer

    port = _free_port()
    container = DockerContainer(IMAGE)
    # Loopback only. (The annotation forgets the (address, port) form, which the Docker client documents.)
    container.ports[f"{port}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
    container.with_env("FDB_NETWORKING_MODE", "host").with_env("FDB_PORT", str(port))
    with container, tempfile.TemporaryDirectory(prefix="fdbqueue-cluster-") as folder:
        _configure(container)
        _provide_client_library(container, Path(folder))
        cluster_file = Path(folder, "fdb.cluster")
        cluster_file.write_text(f"docker:docker@127.0.0.1:{port}\n")
        yield str(cluster_file)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _configure(container: DockerContainer) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_SECONDS
    while True:
        answer = container.exec(["fdbcli", "--timeout", "5", "--exec", "configure new single memory"])
        said = answer.output.decode(errors="replace")
        if "Database created" in said or "already exists" in said:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"the container's server did not start within {STARTED_WITHIN_SECONDS:.0f} s: {said}")
        time.sleep(0.5)


def _provide_client_library(container: DockerContainer, folder: Path) -> None:
    """Take the client library out of the image where the machine has none of its own.

    The binding finds a loaded library by its name; child processes find it on the path.
    """
    if ctypes.util.find_library("fdb_c"):
        return
    library = folder / "libfdb_c.so"
    container.copy_from_container("/usr/lib/libfdb_c.so", library)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
