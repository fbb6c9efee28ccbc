"""Whether Spark can run here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17


def why_no_spark() -> str | None:
    """Return what Spark lacks here, and the command that installs it; None if nothing is missing."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'fdbqueue[spark]'"
    return why_no_java()


def why_no_java() -> str | None:
    """Return what is wrong with the Java here, and the command that installs one; None if nothing is."""
    version = _version()
    if version is None:
        return f"there is no Java: {_how_to_install()}"
    if version < OLDEST:
        return f"Java {version} is older than {OLDEST}: {_how_to_install()}"
    return None


def _version() -> int | None:
    """Return the version of the Java that Spark would use; None if no Java runs."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _how_to_install() -> str:
    if sys.platform == "darwin":
        return f"brew install openjdk@{OLDEST}"
    if shutil.which("dnf"):
        return f"sudo dnf install java-{OLDEST}-openjdk-headless"
    return f"sudo apt-get install openjdk-{OLDEST}-jre-headless"
