"""``python -m tests.sim --seeds 1000``: simulate rounds of chaos, and print the seed of each that broke a promise.

``python -m tests.sim --seed 17`` plays one again, the same to the byte.
"""

from __future__ import annotations

import os
import sys

from tests.sim.threads import replace_threads

if sys.version_info >= (3, 13):
    sys.exit("A simulation needs Python 3.11 or 3.12, whose threads are made of one lock.")
if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets must be the same in every run
    os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
replace_threads()

from tests.sim.command import main  # noqa: E402 - threads have to be replaced before

main()
