"""Things to do once a Session's transaction has committed, and never when it has not.

A function registered here is called at most once, in the committing thread, after the outermost
commit; a rollback forgets it. It must be quick, and an error of it is logged and harms nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

_INFO = "shared.outbox.once_committed"
_log = structlog.get_logger("outbox")
_lock = threading.Lock()
_installed = threading.Event()


def after_commit(
    session: Session, act: Callable[[], None], *, outlives_savepoints: bool = False
) -> None:
    """Call `act` after the commit of the session's present transaction.

    What was registered in a savepoint that is rolled back is forgotten with it, unless it
    `outlives_savepoints`.
    """
    if not _installed.is_set():
        _install()
    if not session.in_transaction():
        session.begin()
    root = session.get_transaction()
    holder = root if outlives_savepoints else session.get_nested_transaction() or root
    session.info.setdefault(_INFO, []).append((root, holder, act))


def _install() -> None:
    with _lock:
        if not sa.event.contains(Session, "after_commit", _committed):
            sa.event.listen(Session, "after_commit", _committed)
            sa.event.listen(Session, "after_soft_rollback", _rolled_back)
        _installed.set()


def _committed(session: Session) -> None:
    waiting = session.info.get(_INFO)
    # The release of a savepoint comes by here as well.
    if not waiting or session.in_nested_transaction():
        return
    del session.info[_INFO]
    committed = session.get_transaction()
    for root, _, act in waiting:
        if root is not committed:
            continue
        try:
            act()
        except Exception:
            _log.exception("after_commit_failed")


def _rolled_back(session: Session, previous_transaction: Any) -> None:
    waiting = session.info.get(_INFO)
    if not waiting:
        return
    if previous_transaction.parent is None:
        del session.info[_INFO]
    else:
        waiting[:] = [entry for entry in waiting if entry[1] is not previous_transaction]
