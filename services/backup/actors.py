"""The Dramatiq actor of the queue, and its handlers bound to what they work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.backup.handlers import Deps, run
from services.backup.items import back_up
from services.backup.pruning import prune
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.payloads import BackUpItem, PruneBackups, RunBackup
from shared.outbox import Execution, Fail, Retry, Snooze

if TYPE_CHECKING:
    import dramatiq

    from shared.outbox.outbox import Outbox

QUEUE = "backup"


def register(
    outbox: Outbox, catalogue: RegisteredCatalogue, deps: Deps
) -> dramatiq.Actor[..., None]:
    """Attach the handlers of this service and return the actor that runs them."""

    @outbox.handler(catalogue.kinds.backup_run)
    def run_backup(execution: Execution, payload: RunBackup) -> Snooze | Fail | None:
        return run(execution, payload, deps)

    @outbox.handler(catalogue.kinds.backup_item)
    def back_up_item(execution: Execution, payload: BackUpItem) -> Snooze | Retry | None:
        return back_up(execution, payload, deps)

    @outbox.handler(catalogue.kinds.backup_prune)
    def prune_backups(execution: Execution, payload: PruneBackups) -> Snooze | None:
        return prune(execution, payload, deps)

    return outbox.actor(QUEUE)
