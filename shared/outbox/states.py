"""The state machine of a task: every state, and every transition with who may make it and why.

The diagram in the documentation is generated from this table, and a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a task stands. The row's value is the source of truth."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    BLOCKED = "blocked"
    DISPATCHING = "dispatching"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: Ended; only an audited manual retry leaves these.
TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
#: Not ended; a dedupe key is taken while its task is in one of these.
ACTIVE = frozenset(State) - TERMINAL
#: Not ended and not running: such a task is cancelled at once.
WAITING = ACTIVE - {State.RUNNING}


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal move; `source` None is the birth of the row."""

    source: State | None
    target: State
    actor: str
    reason: str


def _moves(
    sources: tuple[State | None, ...], targets: tuple[State, ...], actor: str, reason: str
) -> list[Transition]:
    return [Transition(source, target, actor, reason) for source in sources for target in targets]


_S = State

#: Every legal transition. What is not here must not happen.
TRANSITIONS: tuple[Transition, ...] = (
    *_moves((None,), (_S.SCHEDULED,), "enqueue", "not due yet"),
    *_moves((None,), (_S.PENDING,), "enqueue", "due, no credit"),
    *_moves((None,), (_S.BLOCKED,), "enqueue", "behind the head of its ordering key"),
    *_moves((None,), (_S.DISPATCHING,), "enqueue", "due, a credit is held"),
    *_moves((_S.SCHEDULED,), (_S.PENDING,), "scan", "due"),
    *_moves((_S.BLOCKED,), (_S.PENDING, _S.SCHEDULED), "release", "its turn has come"),
    *_moves((_S.BLOCKED,), (_S.PENDING,), "scan", "its resource has a place, or may be well again"),
    *_moves((_S.PENDING,), (_S.DISPATCHING,), "filler", "admitted to the window"),
    *_moves((_S.DISPATCHING,), (_S.DISPATCHED,), "dispatcher", "Redis has it"),
    *_moves((_S.DISPATCHING,), (_S.SCHEDULED,), "dispatcher", "Redis refused, or was never asked"),
    *_moves((_S.DISPATCHING,), (_S.PENDING,), "scan", "dispatch lease expired"),
    *_moves((_S.DISPATCHED,), (_S.PENDING,), "scan", "message gone from Redis"),
    *_moves((_S.DISPATCHING, _S.DISPATCHED), (_S.SCHEDULED,), "worker", "a limit met, or paused"),
    *_moves((_S.DISPATCHING, _S.DISPATCHED), (_S.RUNNING,), "worker", "takes the execution lease"),
    *_moves((_S.RUNNING,), (_S.COMPLETED,), "worker", "done, fenced"),
    *_moves((_S.RUNNING,), (_S.SCHEDULED,), "worker", "retry or snooze"),
    *_moves((_S.RUNNING,), (_S.SCHEDULED,), "scan", "execution lease expired"),
    *_moves((_S.RUNNING,), (_S.PENDING,), "worker", "given back: shutdown or not started"),
    *_moves((_S.RUNNING,), (_S.BLOCKED,), "worker", "parked on a full or broken resource"),
    *_moves((_S.RUNNING,), (_S.FAILED,), "worker", "permanent error, or attempts spent"),
    *_moves((_S.RUNNING,), (_S.FAILED,), "scan", "recoveries spent"),
    *_moves((_S.RUNNING,), (_S.CANCELLED,), "worker", "cancelled or superseded"),
    *_moves((_S.RUNNING,), (_S.CANCELLED,), "scan", "cancelled, and its lease expired"),
    *_moves(
        (_S.SCHEDULED, _S.PENDING, _S.BLOCKED, _S.DISPATCHING, _S.DISPATCHED),
        (_S.CANCELLED,),
        "user",
        "cancelled or superseded while waiting",
    ),
    *_moves((_S.FAILED, _S.CANCELLED), (_S.PENDING, _S.BLOCKED), "user", "manual retry"),
    *_moves((_S.COMPLETED,), (_S.PENDING, _S.BLOCKED), "user", "manual retry with force"),
)

_LEGAL = frozenset((move.source, move.target) for move in TRANSITIONS)


def is_legal(source: State | None, target: State) -> bool:
    """Tell whether the table allows this move."""
    return (source, target) in _LEGAL


def mermaid() -> str:
    """Render the table as a Mermaid state diagram, one arrow per pair of states and actor."""
    lines = ["stateDiagram-v2"]
    for move in TRANSITIONS:
        source = "[*]" if move.source is None else move.source.value
        lines.append(f"    {source} --> {move.target.value}: {move.actor}: {move.reason}")
    lines.extend(f"    {state.value} --> [*]" for state in sorted(TERMINAL))
    return "\n".join(lines) + "\n"
