"""One Spark session for all tests; without Java they are skipped, and say so."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.sessions import PRELOADING, new_session, why_no_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark leaves sockets to the garbage collector, and warns about versions of what it uses.
FROM_SPARK = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::FutureWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark"):
            for warning in FROM_SPARK:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark_is_here() -> None:
    """Skip out loud where Spark can't run."""
    missing = why_no_spark()
    if missing is not None:
        pytest.skip(f"Spark can't run here ({missing})")


@pytest.fixture(scope="session")
def spark(spark_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that tries each task four times, as clusters do."""
    session: Any = new_session("local[2,4]", tmp_path_factory.mktemp("spark"), python_path=PRELOADING)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Make the session the active one: Spark looks there for a stream's sink, and other tests may have changed it."""
    if "spark" in request.fixturenames:
        spark: Any = request.getfixturevalue("spark")
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.fixture
def queue_name() -> str:
    """A name that no other test's queue has."""
    return f"fdbqueue test {secrets.token_hex(8)}"


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """Four partitions of 500 binary values, each of them twice."""
    return numbered_rows(spark)


def numbered_rows(spark: SparkSession) -> DataFrame:
    """Return what `numbers` is, in any session."""
    from pyspark.sql import functions as f

    value = f.encode(f.concat(f.lit("row "), (f.col("id") % 250).cast("string"), f.lit(" of ")), "utf-8")
    number = f.encode(f.spark_partition_id().cast("string"), "utf-8")
    return spark.range(2000, numPartitions=4).select(f.concat(value, number).alias("value"))


@pytest.fixture
def expected() -> list[bytes]:
    """What `numbers` has, sorted."""
    return sorted(b"row %d of %d" % (number % 250, number // 500) for number in range(2000))
