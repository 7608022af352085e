"""The outbox: tasks and what belongs to them.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_DEDUPE_ACTIVE = (
    "CASE WHEN state IN ('blocked', 'dispatched', 'dispatching', 'pending', "
    "'running', 'scheduled') THEN dedupe_key END"
)
_TABLES = (
    "nodes",
    "lanes",
    "queue_policies",
    "batches",
    "ordering_keys",
    "task_audit",
    "task_events",
    "task_attempts",
    "tasks",
)


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("queue", _name(32), nullable=False),
        sa.Column("region", _name(32), nullable=False, server_default=""),
        sa.Column("kind", _name(64), nullable=False),
        sa.Column("tenant_id", _name(64), nullable=False, server_default=""),
        sa.Column("state", _name(12), nullable=False, server_default="pending"),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="1"),
        sa.Column("due_at", _TIME, nullable=False),
        sa.Column("order_at", _TIME, nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("checkpoint", sa.JSON()),
        sa.Column("progress", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("result", sa.JSON()),
        sa.Column("dedupe_key", _text(191)),
        sa.Column("dedupe_active", _text(191), sa.Computed(_DEDUPE_ACTIVE, persisted=False)),
        sa.Column("idempotency_key", _text(191)),
        sa.Column("ordering_key", _text(191)),
        sa.Column("resource_key", _text(191)),
        sa.Column("slots", sa.JSON()),
        sa.Column("batch_id", sa.BigInteger()),
        sa.Column("parent_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("max_attempts", sa.Integer(), nullable=False, server_default="12"),
        sa.Column("recoveries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("crashes", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("dispatch_id", _name(32)),
        sa.Column("dispatch_failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("owner", _name(80)),
        sa.Column("fence", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("lease_until", _TIME),
        sa.Column("cancel_requested", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("error_code", _name(64)),
        sa.Column("error_detail", sa.Text()),
        sa.Column("trace_parent", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("finished_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "ix_tasks_claim",
        "tasks",
        ["queue", "region", "state", "tenant_id", "priority", "order_at", "id"],
    )
    op.create_index("ix_tasks_due", "tasks", ["queue", "region", "state", "due_at"])
    op.create_index("ix_tasks_lease", "tasks", ["state", "lease_until"])
    op.create_index("ix_tasks_tenant", "tasks", ["tenant_id", "id"])
    op.create_index("uq_tasks_dedupe", "tasks", ["queue", "dedupe_active"], unique=True)
    op.create_index("uq_tasks_idempotency", "tasks", ["tenant_id", "idempotency_key"], unique=True)
    op.create_table(
        "task_attempts",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", _name(80)),
        sa.Column("outcome", _name(24), nullable=False),
        sa.Column("error_code", _name(64)),
        sa.Column("error_detail", sa.Text()),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_task_attempts_task", "task_attempts", ["task_id", "id"])
    op.create_table(
        "task_events",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("type", _name(32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_task_events_task", "task_events", ["task_id", "id"])
    op.create_table(
        "task_audit",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", _name(64), nullable=False, server_default=""),
        sa.Column("action", _name(32), nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("reason", sa.String(512), nullable=False, server_default=""),
        sa.Column("state_before", _name(12)),
        sa.Column("state_after", _name(12)),
        sa.Column("created_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_task_audit_task", "task_audit", ["task_id", "id"])
    op.create_table(
        "ordering_keys",
        sa.Column("queue", _name(32), primary_key=True),
        sa.Column("ordering_key", _text(191), primary_key=True),
        sa.Column("policy", _name(8), nullable=False, server_default="block"),
        sa.Column("paused", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("head", sa.BigInteger()),
        **_MYSQL,
    )
    op.create_table(
        "batches",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False, server_default=""),
        sa.Column("open", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("completed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("failed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("cancelled", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("fire_on", _name(16), nullable=False, server_default="ended"),
        sa.Column("callback", sa.JSON()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("sealed_at", _TIME),
        sa.Column("fired_at", _TIME),
        **_MYSQL,
    )
    op.create_table(
        "queue_policies",
        sa.Column("queue", _name(32), primary_key=True),
        sa.Column("region", _name(32), primary_key=True, server_default="*"),
        sa.Column("enabled", sa.SmallInteger(), nullable=False, server_default="1"),
        sa.Column("paused", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("max_running", sa.Integer()),
        sa.Column("max_running_per_tenant", sa.Integer()),
        sa.Column("starts_per_second", sa.Float()),
        sa.Column("start_burst", sa.Integer()),
        sa.Column("fetch_ahead", sa.Integer()),
        sa.Column("max_backlog", sa.Integer()),
        sa.Column("time_limit_seconds", sa.Float()),
        sa.Column("max_attempts", sa.Integer()),
        sa.Column("version", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("updated_at", _TIME),
        **_MYSQL,
    )
    op.create_table(
        "lanes",
        sa.Column("queue", _name(32), primary_key=True),
        sa.Column("region", _name(32), primary_key=True, server_default=""),
        sa.Column("tenant_id", _name(64), primary_key=True, server_default=""),
        sa.Column("priority", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("weight", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("watermark", _TIME, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("touched_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "nodes",
        sa.Column("node", _name(64), primary_key=True),
        sa.Column("region", _name(32), nullable=False, server_default=""),
        sa.Column("role", _name(16), nullable=False),
        sa.Column("queues", sa.JSON(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("threads_busy", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("mean_seconds", sa.JSON()),
        sa.Column("version", sa.String(64)),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("last_seen", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_nodes_last_seen", "nodes", ["last_seen"])


def downgrade() -> None:
    for name in _TABLES:
        op.drop_table(name)
