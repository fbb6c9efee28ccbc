"""Let Spark's daemons import what their workers need before they fork them: a worker lives for one call or a few.

Python imports this when it starts, if this folder is in its PYTHONPATH. Spark starts a daemon for each kind of worker,
as ``python -m pyspark.daemon MODULE``, and has no option for those of data sources.
"""

import gc
import importlib
import sys

NEEDED = ("pyarrow", "fdbqueue.spark", "fdbqueue.engine.embedded", "tests.spark.faulty")

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    worker = sys.orig_argv[3]
    for module in (worker, *NEEDED, *(["pandas"] if worker == "pyspark.worker" else [])):
        importlib.import_module(module)
    gc.freeze()
