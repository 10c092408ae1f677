"""The one rule of which committed steps stay. Standard library and Python 3.8 only, as `trainer.contract.tree`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


def newest_sound(committed: Iterable[int], sound: Callable[[int], bool]) -> int | None:
    """Return the newest step that is sound, None if none is; `sound` is asked for no older one."""
    return next((step for step in sorted(committed, reverse=True) if sound(step)), None)


def removable(
    committed: Collection[int], keep: int, unsound: Collection[int], protected: Collection[int] = ()
) -> list[int]:
    """Return the steps that may go, newest first. The newest `keep` that are not known to be `unsound` stay, at least
    one, and so do the `protected` ones. A step newer than all of these stays whatever it is: it may be read again."""
    steps = sorted(committed, reverse=True)
    counted = [step for step in steps if step not in unsound]
    kept = {*counted[: max(keep, 1)], *protected}
    return [step for step in steps if step not in kept and any(step < newer for newer in kept)]
