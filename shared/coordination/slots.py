"""Slots: at most so many holders of one name at a time, over all processes.

A holder is a token with an expiry on Redis's clock. A token that expired is never renewed back; a
release touches only its own token. Without Redis there is no slot, and no local stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import redis

from shared.coordination import scripts
from shared.coordination.client import make_client
from shared.core.errors import UnavailableError
from shared.core.ids import new_id

#: What a script takes as an argument.
Arg: TypeAlias = str | int

#: A token lives so long without a renewal.
SLOT_SECONDS = 60.0
#: A place is kept so long for a task that was woken for it.
RESERVED_SECONDS = 30.0
#: A rebuild must be done within this.
REBUILD_SECONDS = 10.0
#: One command answers within this.
COMMAND_SECONDS = 2.0


def reservation(task_id: int) -> str:
    """Return the member that keeps a place for one task."""
    return f"reserved:{task_id}"


class RedisSlots:
    """The slots of one namespace. Thread-safe. Every method raises UnavailableError without Redis.

    The epoch lapses when nobody has used any slot for half of `slot_seconds`: a Redis that nobody
    could reach for so long is seen like an empty one, before any token that is renewed every
    quarter of that time could have expired there.
    """

    def __init__(
        self,
        redis_url: str,
        namespace: str,
        *,
        slot_seconds: float = SLOT_SECONDS,
        reserved_seconds: float = RESERVED_SECONDS,
        rebuild_seconds: float = REBUILD_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
    ) -> None:
        self._client = make_client(redis_url, command_seconds)
        self._prefix = f"{namespace}:slots:v1"
        self._slot_milliseconds = int(slot_seconds * 1000)
        self._epoch_milliseconds = int(slot_seconds * 500)
        self._reserved_milliseconds = int(reserved_seconds * 1000)
        self._rebuild_milliseconds = int(rebuild_seconds * 1000)
        register = self._client.register_script
        self._acquire = register(scripts.ACQUIRE)
        self._confirm = register(scripts.CONFIRM)
        self._renew = register(scripts.RENEW)
        self._hand_over = register(scripts.HAND_OVER)
        self._reserve = register(scripts.RESERVE)
        self._in_use = register(scripts.IN_USE)
        self._begin_rebuild = register(scripts.BEGIN_REBUILD)
        self._enter = register(scripts.ENTER)

    # -- a holder ------------------------------------------------------------------------------

    def acquire(self, name: str, token: str, *, limit: int, task_id: int) -> tuple[str, str]:
        """Take a place for `token`: ("held", epoch), ("full", "") or ("no_epoch", "").

        A place that is reserved for the task is taken, whatever the limit says by now.
        """
        keys = [self._epoch_key, self._key(name)]
        milliseconds = (self._slot_milliseconds, self._epoch_milliseconds)
        args: list[Arg] = [token, *milliseconds, limit, reservation(task_id)]
        outcome, epoch = self._ask(lambda: self._acquire(keys=keys, args=args))
        return str(outcome), str(epoch)

    def confirm(self, name: str, token: str, *, epoch: str) -> bool:
        """Tell whether the token, which stands in the task's row now, still holds its place.

        False when the epoch of its acquire is over: whoever began the next may not have seen the
        row. The token is then let go of.
        """
        keys = [self._epoch_key, self._key(name)]
        return bool(self._ask(lambda: self._confirm(keys=keys, args=[epoch, token])))

    def renew(self, tokens: Sequence[tuple[str, str]]) -> set[tuple[str, str]] | None:
        """Renew (name, token) pairs; returns the lost ones, None when that is not known now."""
        keys = [self._epoch_key, *(self._key(name) for name, _ in tokens)]
        milliseconds = (self._slot_milliseconds, self._epoch_milliseconds)
        args: list[Arg] = [*milliseconds, *(token for _, token in tokens)]
        answers = self._ask(lambda: self._renew(keys=keys, args=args))
        if not answers:
            return None
        return {pair for pair, answer in zip(tokens, answers, strict=True) if not answer}

    def release(self, name: str, token: str) -> None:
        """Give the place back; nothing happens when it is another's or gone."""
        self._ask(lambda: self._client.zrem(self._key(name), token))

    # -- places for tasks that wait --------------------------------------------------------------

    def hand_over(self, name: str, token: str, task_id: int, *, limit: int) -> str:
        """Turn a token (or a reservation) into the reservation of a task.

        "reserved"; "taken" when the task has one already (the token stays); "gone" when there was
        no place to give on.
        """
        args: list[Arg] = [token, reservation(task_id), self._reserved_milliseconds, limit]
        return str(self._ask(lambda: self._hand_over(keys=[self._key(name)], args=args)))

    def reserve(self, name: str, task_id: int, *, limit: int) -> str:
        """Keep a free place for a task: "reserved", "taken" (it has one), "full", "no_epoch"."""
        keys = [self._epoch_key, self._key(name)]
        args: list[Arg] = [reservation(task_id), self._reserved_milliseconds, limit]
        return str(self._ask(lambda: self._reserve(keys=keys, args=args)))

    def in_use(self, name: str) -> int | None:
        """Return how many places are held or reserved; None when that is not known now."""
        keys = [self._epoch_key, self._key(name)]
        count = int(self._ask(lambda: self._in_use(keys=keys)))
        return None if count < 0 else count

    # -- after a loss --------------------------------------------------------------------------

    def begin_rebuild(self) -> str | None:
        """Take the right to rebuild for some seconds; None when another has it."""
        mine = new_id()
        keys = [self._lock_key]
        args: list[Arg] = [mine, self._rebuild_milliseconds]
        took = self._ask(lambda: self._begin_rebuild(keys=keys, args=args))
        return mine if took else None

    def enter(self, right: str, tokens: Sequence[tuple[str, str]]) -> bool:
        """Enter the tokens of all that runs and begin an epoch, if the right still holds.

        `tokens` are (name, token) pairs read after `begin_rebuild`.
        """
        keys = [self._epoch_key, self._lock_key, *(self._key(name) for name, _ in tokens)]
        milliseconds = (self._epoch_milliseconds, self._slot_milliseconds)
        args: list[Arg] = [right, new_id(), *milliseconds, *(token for _, token in tokens)]
        return bool(self._ask(lambda: self._enter(keys=keys, args=args)))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- names ---------------------------------------------------------------------------------

    @property
    def _epoch_key(self) -> str:
        return f"{self._prefix}.epoch"

    @property
    def _lock_key(self) -> str:
        return f"{self._prefix}.rebuild"

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    @staticmethod
    def _ask(command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as error:
            raise UnavailableError("Redis does not answer for slots", error=str(error)) from error
