"""Deprecation: a public name that will go keeps working for two minor versions, and warns meanwhile."""

from __future__ import annotations

import warnings


def deprecated(name: str, *, since: str, instead: str, stacklevel: int = 2) -> None:
    """Warn that the caller uses a public name, or a parameter, that will be removed.

    Args:
        name: what is deprecated, as the caller writes it.
        since: the version that warned first.
        instead: what to write now.
        stacklevel: as for `warnings.warn`, counted from the function that calls this one.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     deprecated("Queue.pop", since="0.2.0", instead="Queue.dequeue")
    >>> str(told[0].message)
    'Queue.pop is deprecated since 0.2.0 and goes two minor versions later. Use Queue.dequeue.'
    """
    message = f"{name} is deprecated since {since} and goes two minor versions later. Use {instead}."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)
