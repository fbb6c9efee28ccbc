"""What every test has: a database of each engine, a fresh subspace, processes that do not outlive the test.

A test that names `db` (or `url`) runs once per engine: `memory`, `file` and `cluster`. One that is about some
of them only says so: ``@pytest.mark.engines("file", "cluster")``. Each file of tests has embedded databases of its
own, and the cluster's lives as long as the session: a test keeps to its `space`, which no other test has.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import fdbqueue
from fdbqueue.engine import Subspace
from fdbqueue.stored.layout import CATALOGUE
from tests.helpers import cluster
from tests.helpers.processes import Processes

pytest_plugins = ("fdbqueue.testing",)
"""Users get it by its entry point; a checkout that was installed before it existed does not."""

ENGINES = ("memory", "file", "cluster")
HERE = Path(__file__).resolve().parent
SPARK = HERE / "spark"
NO_CLUSTER = "FDBQUEUE_TESTS_WITHOUT_CLUSTER"
NOT_FAST = ("applications", "chaos", "compat", "containers", "crash", "notebooks", "release")
SESSION_PREFIX = ("fdbqueue tests", secrets.token_hex(4))

_common = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("fast", max_examples=10, **_common)  # type: ignore[arg-type]
settings.register_profile("dev", max_examples=25, **_common)  # type: ignore[arg-type]
settings.register_profile("ci", max_examples=25, derandomize=True, print_blob=True, **_common)  # type: ignore[arg-type]
settings.register_profile("nightly", max_examples=200, print_blob=True, **_common)  # type: ignore[arg-type]
settings.register_profile("long", max_examples=5_000, print_blob=True, **_common)  # type: ignore[arg-type]

NIGHTLY = bool(os.environ.get("FDBQUEUE_NIGHTLY"))
FAST = bool(os.environ.get("FDBQUEUE_FAST"))
settings.load_profile("fast" if FAST else os.environ.get("HYPOTHESIS_PROFILE", "dev"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background like that. Tests of Ctrl-C need Python's own handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines(*names): run on these engines only, of memory, file and cluster")
    if NO_CLUSTER not in os.environ:  # processes that share the tests must agree on them
        os.environ[NO_CLUSTER] = cluster.missing() or ""


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    if os.environ[NO_CLUSTER]:
        terminalreporter.line(f"On the embedded engine only: {os.environ[NO_CLUSTER]}", yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return what `-n auto` is: two processes more than cores, since tests also wait; none for single files."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return 0 if named and all(".py" in name for name in config.args) else (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what shares the tests among processes."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.helpers.scheduling import OneSpark

    return OneSpark(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave folders that test no room of the library out of a fast run, unless the caller names them."""
    aside = FAST and collection_path.parent == HERE and collection_path.name in NOT_FAST
    return True if aside and not any(collection_path.name in name for name in config.args) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave what is collected out of garbage collections: it stays, and each one would look through all of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not NIGHTLY:
        skip = pytest.mark.skip(reason="long, so left to the night: run it with `make test NIGHTLY=1`")
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(skip)
    spark, slow = ({item.path for item in items if item.get_closest_marker(name)} for name in ("spark", "slow"))
    # What takes longest comes first, so that no process ends long after the others. One does all of tests/spark.
    last = {path: (SPARK not in path.parents, path not in spark, path not in slow) for path in {i.path for i in items}}
    items.sort(key=lambda item: last[item.path])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that uses an engine one run on each that it wants and that is there.

    In a fast run that is the first of them. A test that wants a cluster only is skipped where there is none.
    """
    if "engine" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("engines")
    names = mark.args if mark else ENGINES
    unknown = set(names) - set(ENGINES)
    if unknown:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: no such engine: {', '.join(sorted(unknown))}")
    marks = {"cluster": [pytest.mark.cluster]}
    if os.environ[NO_CLUSTER]:
        names = tuple(name for name in names if name != "cluster") or names
    if FAST:
        names = names[:1]
    metafunc.parametrize("engine", [pytest.param(name, marks=marks.get(name, [])) for name in names], scope="session")


@pytest.fixture(scope="session")
def cluster_file() -> Iterator[str]:
    """The cluster file of a cluster that answers; a loud skip, or a failure, where there is none."""
    with cluster.find() as found:
        yield found


@pytest.fixture(scope="session")
def shared(cluster_file: str) -> Iterator[Any]:
    """The cluster's database."""
    db = fdbqueue.open(f"fdb:{cluster_file}")
    yield db
    db.clear_range_startswith(Subspace(SESSION_PREFIX).key())
    db.clear_range_startswith(CATALOGUE + Subspace(SESSION_PREFIX).key())
    db.close()


@pytest.fixture(scope="module")
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    opened = Databases(request, tmp_path_factory)
    yield opened
    opened.close()


class Databases:
    """The databases of a file of tests, each opened when its first test asks for it.

    The embedded ones are its own: what a call costs must not depend on what a thousand other tests left there.
    """

    def __init__(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._request = request
        self._tmp_path_factory = tmp_path_factory
        self._urls: dict[str, str] = {}
        self._opened: dict[str, Any] = {}

    def url(self, engine: str) -> str:
        if engine not in self._urls:
            self._urls[engine] = self._new_url(engine)
        return self._urls[engine]

    def _new_url(self, engine: str) -> str:
        if engine == "memory":
            return "memory:"
        if engine == "file":
            return f"file:{self._tmp_path_factory.mktemp('engine') / 'db'}"
        return f"fdb:{self._request.getfixturevalue('cluster_file')}"

    def db(self, engine: str) -> Any:
        if engine == "cluster":
            return self._request.getfixturevalue("shared")
        if engine not in self._opened:
            self._opened[engine] = fdbqueue.open(self.url(engine))
        return self._opened[engine]

    def close(self) -> None:
        for db in self._opened.values():
            db.close()


@pytest.fixture
def url(engine: str, databases: Databases) -> str:
    """The URL of `db`, to open it in other processes. (``memory:`` opens another one each time.)"""
    return databases.url(engine)


@pytest.fixture
def db(engine: str, databases: Databases) -> Any:
    """The engine's database."""
    return databases.db(engine)


@pytest.fixture
def untouched() -> Iterator[Any]:
    """A database in memory that no other test has used, since watches and threads lengthen the way of a commit."""
    db = fdbqueue.open("memory:")
    yield db
    db.close()


@pytest.fixture
def untouched_file(tmp_path: Path) -> Iterator[Any]:
    """The same in a folder."""
    db = fdbqueue.open(f"file:{tmp_path / 'db'}")
    yield db
    db.close()


@pytest.fixture
def space() -> Subspace:
    """A subspace that is empty and this test's own."""
    return Subspace((*SESSION_PREFIX, secrets.token_hex(8)))


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Processes of their own for a test's functions; what still runs at the end is killed."""
    with Processes() as started:
        yield started


@pytest.fixture
def own_children() -> Iterator[Processes]:
    """The same, as children of this process, which alone may wait for their signals."""
    with Processes(fresh=True) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_url_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the caller's FDBQUEUE_URL out: a test must never touch a database that it wasn't given."""
    monkeypatch.delenv("FDBQUEUE_URL", raising=False)


@pytest.fixture
def repository() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output: the processes that share the suite send it to each other as UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
