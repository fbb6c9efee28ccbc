"""A pytest plugin for CI: a few failed tests run again, each alone. CI passes only if all of them then pass.

A slow machine is no reason to lose a change, but a test that needs this has a fault. So the run prints its name, and
the first run's tracebacks stay in the output.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator

import pytest

MOST = 5
"""If more tests failed, no machine is to blame, and none runs again."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """Run the failed tests again, after the summary. A run that broke off gets no second chance, nor does a file."""
    yield
    out = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != pytest.ExitCode.TESTS_FAILED or out is None:
        return
    reports = [*out.stats.get("failed", ()), *out.stats.get("error", ())]
    failed = list(dict.fromkeys(report.nodeid for report in reports))
    if len(failed) > MOST or not all(isinstance(report, pytest.TestReport) for report in reports):
        out.line(f"No second chance: it is for at most {MOST} failed tests, here are {len(failed)} or a broken file.")
        return
    out.section("second chance", red=True)
    passed = [nodeid for nodeid in failed if _passes_alone(session.config, nodeid)]
    for nodeid in failed:
        again = "passed when run again alone: a fault to look at" if nodeid in passed else "failed again"
        out.line(f"failed first and {again}: {nodeid}", red=True)
    if passed == failed:
        session.exitstatus = pytest.ExitCode.OK


def _passes_alone(config: pytest.Config, nodeid: str) -> bool:
    """Run one test in a process of its own, and print what it says. A test that is skipped now has not passed."""
    command = [sys.executable, "-m", "pytest", "--color=no", nodeid]
    ran = subprocess.run(command, cwd=config.rootpath, capture_output=True, text=True, check=False)
    print(ran.stdout, ran.stderr, sep="", flush=True)
    return ran.returncode == 0 and re.search(r"\b1 passed\b", ran.stdout) is not None
