"""Which of the project's tests run against an installed wheel: of conformance, of each layer and of each extra.

Left out are tests of the repository's own sources, those that start hundreds of processes, and those of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ENGINES = ("tests/conformance",)
"""On memory and file, in every environment but those of one extra alone."""
IN_QUEUE = (
    "appending",
    "arguments",
    "arrivals",
    "browse",
    "bulk",
    "catalogue",
    "checking",
    "codecs_checked",
    "inspecting",
    "model",
    "once",
    "order",
    "queue",
    "quotas",
    "renaming",
    "unreadable",
)
CORE = (
    "tests/unit",
    *(f"tests/queue/test_{name}.py" for name in IN_QUEUE),
    *(
        f"tests/layers/{layer}/test_{layer}.py"
        for layer in (
            "blobs",
            "consumer",
            "groups",
            "leases",
            "oplog",
            "priority",
            "results",
            "sessions",
            "smart",
            "smart_sessions",
            "staged",
            "streams",
            "subscriptions",
        )
    ),
    "tests/cli/test_commands.py",
    "tests/agents/test_reference.py",
)
"""On memory, where conformance runs; none of them needs an extra."""
OF_EXTRA = {
    "arrow": ("tests/queue/test_arrow.py",),
    "demo": ("tests/cli/test_demo.py",),
    "metrics": ("tests/observe/test_metrics.py",),
    "notebook": ("tests/notebooks/test_helpers.py",),
    "otel": ("tests/observe/test_telemetry.py", "tests/observe/test_propagation.py"),
    "spark": (
        "tests/spark/test_columns.py",
        "tests/spark/test_parts.py",
        "tests/spark/test_protocol.py",
        "tests/spark/test_tasks.py",
        "tests/spark/test_look.py",
        "tests/spark/test_streams_composed.py",
    ),
    "tasks": ("tests/layers/tasks",),
    "testing": ("tests/testing",),
    "web": ("tests/web/test_changes.py", "tests/web/test_pages.py", "tests/web/test_parity.py"),
}
"""On memory, or if they don't run there on file, in an environment that has the extra; none needs another one."""
TOOLS = ("pytest>=8", "pytest-timeout>=2.4", "hypothesis>=6.150", "pydantic>=2.7")
TOOLS_OF_EXTRA = {
    "arrow": ("duckdb>=1.3", "pandas>=2", "polars>=1.31"),
    "metrics": ("opentelemetry-sdk>=1.31",),  # the fixtures of both import it
    "otel": ("opentelemetry-exporter-otlp-proto-http>=1.31", "opentelemetry-sdk>=1.31"),
    "web": ("httpx>=0.28.1",),
}
"""What these tests need beside the library and its extra."""
CODECS = "tests/queue/test_codecs_checked.py::test_another_codec_is_refused"
EVERY_VERB = f"{CODECS}_by_every_verb_which_says_which_one_it_is"
IN_A_TRANSACTION = f"{CODECS}_in_a_callers_transaction_and_when_awaited"
NEED = {
    "tests/cli/test_commands.py::test_an_address_that_is_taken_is_told_with_its_option": ("metrics", "web"),
    "tests/cli/test_commands.py::test_words_of_errors_and_help": ("web",),
    f"{EVERY_VERB}[memory-dequeue_arrow": ("arrow",),
    f"{EVERY_VERB}[memory-to_": ("arrow",),
    f"{IN_A_TRANSACTION}[memory-to_": ("arrow",),
    "tests/layers/tasks/test_running.py::test_a_worker_of_several_queues_tells_a_probe_and_prometheus": ("metrics",),
    "tests/observe/test_telemetry.py::test_through_arrow": ("arrow",),
    "tests/web/test_changes.py::test_a_schedule_is_listed_paused_and_resumed": ("tasks",),
    "tests/queue/test_inspecting.py::test_the_page_has_charts_as_a_picture_or_as_text_without_matplotlib": (
        "notebook",
    ),
    "tests/queue/test_renaming.py::test_a_history_is_renamed_as_it_is": ("arrow",),
    "tests/queue/test_renaming.py::test_a_queue_does_not_look_empty_under_its_old_name[memory-to_": ("arrow",),
}
"""Beginnings of the names of tests that need further extras, and which ones. Without them they are left out."""
LEFT_OUT = ("*mutants*", "*crash*", "*kill*")
SELECTED = "not slow and not nightly and not cluster"
INSTALLED = "tests/release/installed.py"


def engines(names: Sequence[str]) -> list[str]:
    """Return what runs on memory and file. One extra alone has only its own tests."""
    return [] if len(names) == 1 else list(ENGINES)


def paths(names: Sequence[str]) -> list[str]:
    """Return what runs on one engine, where these extras are installed, and the proof that the wheel was used."""
    core = () if len(names) == 1 else CORE
    return [*core, *(path for name in OF_EXTRA if name in names for path in OF_EXTRA[name]), INSTALLED]


def left_out(names: Iterable[str]) -> list[str]:
    """Return the options of pytest that leave out what can't run beside these extras."""
    there = set(names)
    without = [f"--deselect={name}" for name, needed in NEED.items() if not there.issuperset(needed)]
    return [f"--ignore-glob={pattern}" for pattern in LEFT_OUT] + without


def tools(names: Iterable[str]) -> list[str]:
    return [*TOOLS, *(one for name in names for one in TOOLS_OF_EXTRA.get(name, ()))]
