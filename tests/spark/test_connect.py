"""Spark Connect: the same programs, whose driver is a client of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.engines("file", "cluster")]


def test_a_client_of_spark_connect_loads_looks_and_streams(
    spark_is_here: None, db: Any, url: str, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect needs pip install 'pyspark[connect]'")
    command = [sys.executable, "-m", "tests.spark.connected", url, queue_name, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    ran = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-3000:]

    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("SEEN ")]
    seen = json.loads(line.removeprefix("SEEN "))
    assert seen.pop("session").startswith("pyspark.sql.connect")
    assert seen == {"rows": [100, 100], "again": True, "looked": 100}
    out = Queue(queue_name + " out", codec="str")
    assert sorted(item.value for item in out.browse(db)) == sorted(f"{number}" for number in range(100))
    assert Queue(queue_name).stats(db).available == 0
