"""The layers' verbs are of one mould: the same verb, and the same parameter, is the same everywhere."""

from __future__ import annotations

import inspect
from collections import defaultdict
from itertools import combinations
from typing import Any

import pytest

import fdbqueue
import fdbqueue.layers
from fdbqueue.engine.verb import Verb
from fdbqueue.layers import Consumer, Leases, StagedQueue, Subscription

Parameters = dict[str, inspect.Parameter]

DEFAULTS: dict[str, object] = {
    "after": None,
    "at": None,
    "before": None,
    "consumer": None,
    "duration": 30.0,
    "duty_cycle": 1.0,
    "error": None,
    "headers": None,
    "priority": None,
    "reverse": False,
    "timeout": 0.0,
    "ttl": None,
}
"""Parameters that have one default in all verbs."""

EXCEPTIONS = {
    ("Group.hold", "duration"): "the life of a producer's hold, not of a lease",
    ("Sessions.purge", "limit"): "one transaction does it, so that nothing of a session is left half done",
    ("Sessions.redrive", "limit"): "as purge",
    ("SmartQueue.enqueue", "timeout"): "a limit that says wait waits, unless the call says how long",
    ("SmartQueue.enqueue_many", "timeout"): "as enqueue",
    ("SmartSessions.enqueue", "timeout"): "as that of a smart queue",
    ("SmartSessions.enqueue_many", "timeout"): "as enqueue",
    ("StagedQueue.take_one", "timeout"): "for layers, which pass on what they were given",
}
"""Other defaults, and why."""


def verbs() -> dict[str, dict[str, Parameters]]:
    """Return the parameters of every public verb, by the verb's name and its class."""
    found: dict[str, dict[str, Parameters]] = defaultdict(dict)
    for module in (fdbqueue, fdbqueue.layers):
        for name in module.__all__:
            kind = getattr(module, name)
            for attribute in dir(kind) if inspect.isclass(kind) else ():
                method = inspect.getattr_static(kind, attribute)
                if attribute.startswith("_") or not (isinstance(method, Verb) or inspect.isfunction(method)):
                    continue
                parameters = dict(inspect.signature(method).parameters)
                if (name, attribute) == ("Queue", "read"):
                    continue  # for layers: it runs a function in a transaction
                if (name, attribute) in (("Group", "cancel"), ("Queue", "register")):
                    continue  # of the group or the queue itself, so that it needs no position and no recipient
                if name in ("AsyncTask", "BaseTask", "Task", "Call") and attribute == "enqueue":
                    continue  # of a task, with its own arguments, or of a call, which has them
                if name == "Schedules":
                    continue  # of schedules, by their names
                if list(parameters)[1:2] in (["tr"], ["db"]):
                    rest = dict(list(parameters.items())[2:])
                    rest.pop("session", None)  # the verbs of sessions begin with it
                    found[attribute][name] = rest
    return found


SHARED = {verb: classes for verb, classes in verbs().items() if len(classes) > 1}


def test_verbs_that_classes_share_are_found() -> None:
    assert {"enqueue", "dequeue_many", "lease", "browse", "peek", "stats"} <= set(SHARED)


@pytest.mark.parametrize("verb", sorted(SHARED))
def test_a_verb_has_its_parameters_in_one_order_with_one_default(verb: str) -> None:
    for (one, ones), (other, others) in combinations(SHARED[verb].items(), 2):
        common = [name for name in ones if name in others]
        assert common == [name for name in others if name in ones], f"{one}.{verb} and {other}.{verb}"
        for name in common:
            if (f"{one}.{verb}", name) in EXCEPTIONS or (f"{other}.{verb}", name) in EXCEPTIONS:
                continue
            assert (ones[name].kind, ones[name].default) == (others[name].kind, others[name].default), (
                f"{name} of {one}.{verb} and {other}.{verb}"
            )


@pytest.mark.parametrize("verb", sorted(SHARED))
def test_required_arguments_have_one_name_in_every_class(verb: str) -> None:
    needed = {
        tuple(name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD)
        for parameters in SHARED[verb].values()
    }
    assert len(needed) == 1


def test_a_parameter_has_one_default_in_all_verbs() -> None:
    for verb, classes in verbs().items():
        for kind, parameters in classes.items():
            for name, one in parameters.items():
                if name in DEFAULTS and (f"{kind}.{verb}", name) not in EXCEPTIONS:
                    assert one.default == DEFAULTS[name], f"{name} of {kind}.{verb}"
                    assert one.kind is one.KEYWORD_ONLY, f"{name} of {kind}.{verb}"


@pytest.mark.slow
def test_every_exception_is_still_one() -> None:
    for place, name in EXCEPTIONS:
        kind, _, verb = place.partition(".")
        assert verbs()[verb][kind][name].default != DEFAULTS.get(name)


@pytest.mark.parametrize("where", [Leases.lease, Subscription.lease, StagedQueue.__init__, Consumer.__init__])
def test_the_name_in_a_lease_is_called_consumer(where: Any) -> None:
    parameter = inspect.signature(where).parameters["consumer"]

    assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, None)


def test_every_browser_takes_the_arguments_of_the_queues() -> None:
    own = {"level", "on_bad", "selector", "state"}
    for kind, parameters in verbs()["browse"].items():
        common = {name: one.default for name, one in parameters.items() if name not in own}
        assert common == {"after": None, "before": None, "limit": None, "reverse": False, "duty_cycle": 1.0}, kind
