"""How the threads of a process are shared out over what they wait for: nobody takes them all.

A breaker opens only after calls have failed, and a call that hangs takes its time to fail. What is
silent meanwhile keeps most of the threads at most, all of it together: who came last has to leave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.core.clock import monotonic
from shared.core.errors import ResourceBusy

#: Seconds of waiting without a sign of life after which something is silent.
SILENT_SECONDS = 3.0
#: Seconds until one more may look whether something is still silent; doubled with each look.
LOOK_SECONDS = 10.0
LONGEST_LOOK_SECONDS = 600.0
#: Names whose looks are remembered.
_MAX_LOOKS = 10_000


class Share:
    """One execution that uses something. `check` is to be asked while it waits."""

    def __init__(
        self,
        shares: Shares,
        name: str,
        silent_seconds: Callable[[], float],
        refusal: Callable[[], ResourceBusy],
        owner: object,
        began: float,
    ) -> None:
        self._shares = shares
        self.name = name
        self.owner = owner
        self.silent_seconds = silent_seconds
        self.refusal = refusal
        self.began = began

    def check(self) -> None:
        """Raise the refusal when the thread is needed for what does answer."""
        if self._shares.must_leave(self):
            raise self.refusal()


class Shares:
    """The threads of one process. Thread-safe. Without `threads`, or with one, nothing is limited.

    What is used has a name, and tells for how long it has let somebody wait without any sign.
    Whatever answers may have all threads; what is silent, all names together, keeps three quarters.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        silent_seconds: float = SILENT_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        spare = max(1, (threads or 0) // 4)
        #: Threads that what is silent may have.
        self.most = None if threads is None or threads < 2 else threads - spare
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: In the order in which they came.
        self._inside: list[Share] = []
        #: When the next may look, and the seconds until the one after it, by name.
        self._looks: dict[str, tuple[float, float]] = {}

    @contextmanager
    def enter(
        self,
        name: str,
        silent_seconds: Callable[[], float],
        *,
        refusal: Callable[[], ResourceBusy],
        owner: object = None,
    ) -> Iterator[Share]:
        """Use something in the block. An `owner` has one thread, however much it uses.

        Raises what `refusal` makes when it is silent and has its threads; so does `Share.check`
        later, for those who came when it had none to spare. To leave counts no attempt.
        """
        owner = object() if owner is None else owner
        share = Share(self, name, silent_seconds, refusal, owner, self._clock())
        if not self._admit(share):
            raise refusal()
        try:
            yield share
        finally:
            with self._lock:
                self._inside.remove(share)

    def must_leave(self, share: Share) -> bool:
        """Tell whether one who is inside has waited long enough for what keeps silent."""
        if self.most is None or not self._is_silent(share):
            return False
        with self._lock:
            if self._clock() - share.began < self._silent_seconds:
                return False
            waiting = self._waiting()
        # It may have been answered in this very moment.
        return share.owner in waiting and waiting.index(share.owner) >= self.most

    def _admit(self, share: Share) -> bool:
        with self._lock:
            if self.most is not None:
                if not self._is_silent(share):
                    self._looks.pop(share.name, None)
                elif not self._has_room(share):
                    if not self._may_look(share.name):
                        return False
                    self._note_look(share.name)
            self._inside.append(share)
            return True

    def _is_silent(self, share: Share) -> bool:
        return share.silent_seconds() >= self._silent_seconds

    def _waiting(self) -> list[object]:
        """Return who waits for what is silent, in the order in which they came."""
        return list(dict.fromkeys(one.owner for one in self._inside if self._is_silent(one)))

    def _has_room(self, share: Share) -> bool:
        waiting = self._waiting()
        return self.most is None or len(waiting) < self.most or share.owner in waiting

    def _may_look(self, name: str) -> bool:
        """Tell whether one may find out if something is still silent, beside those it has."""
        if any(other.name == name for other in self._inside):
            return False
        return self._clock() >= self._looks.get(name, (0.0, 0.0))[0]

    def _note_look(self, name: str) -> None:
        seconds = self._looks.pop(name, (0.0, LOOK_SECONDS))[1]
        self._looks[name] = (self._clock() + seconds, min(LONGEST_LOOK_SECONDS, 2 * seconds))
        if len(self._looks) > _MAX_LOOKS:
            del self._looks[next(iter(self._looks))]
