"""The outbox's tables. Floor 1; Alembic and `Outbox.create_tables()` make them from this metadata.

Times are UTC with microseconds, on the database's clock. Text that names things is ASCII and
compares byte by byte, so that indexes stay short and two names never fold into one.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from shared.outbox.states import ACTIVE, State

metadata = sa.MetaData()

_TEXT_FORMAT = "%Y-%m-%d %H:%M:%S.%f"


class UTCDateTime(sa.types.TypeDecorator[dt.datetime]):
    """A naive UTC datetime with microseconds: DATETIME(6) on MySQL, sortable text on SQLite."""

    impl = sa.String(26)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Pick the column type of the dialect."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.String(26))
        return dialect.type_descriptor(mysql.DATETIME(fsp=6))

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> Any:
        """Turn a datetime (aware ones are converted) into what the column holds."""
        if value is None:
            return None
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return value.strftime(_TEXT_FORMAT) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> dt.datetime | None:
        """Turn what the column holds into a naive datetime."""
        return dt.datetime.strptime(value, _TEXT_FORMAT) if isinstance(value, str) else value


#: BIGINT everywhere; SQLite only auto-increments a column declared INTEGER.
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def name_type(length: int) -> sa.types.TypeEngine[str]:
    """Return a column type for identifiers: ASCII, compared as bytes."""
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def key_type(length: int) -> sa.types.TypeEngine[str]:
    """Return a column type for keys that callers choose: any Unicode, compared exactly."""
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ACTIVE_LIST = ", ".join(f"'{state}'" for state in sorted(ACTIVE))
_ACTIVE_DEDUPE = f"CASE WHEN state IN ({_ACTIVE_LIST}) THEN dedupe_key END"

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("queue", name_type(32), nullable=False),
    sa.Column("region", name_type(32), nullable=False, server_default=""),
    sa.Column("kind", name_type(64), nullable=False),
    sa.Column("tenant_id", name_type(64), nullable=False, server_default=""),
    sa.Column("state", name_type(12), nullable=False, server_default=State.PENDING),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="1"),
    sa.Column("due_at", UTCDateTime, nullable=False),
    sa.Column("order_at", UTCDateTime, nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("checkpoint", sa.JSON),
    sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("result", sa.JSON),
    sa.Column("dedupe_key", key_type(191)),
    sa.Column("dedupe_active", key_type(191), sa.Computed(_ACTIVE_DEDUPE, persisted=False)),
    sa.Column("idempotency_key", key_type(191)),
    sa.Column("ordering_key", key_type(191)),
    sa.Column("resource_key", key_type(191)),
    sa.Column("slots", sa.JSON),
    sa.Column("batch_id", sa.BigInteger),
    sa.Column("parent_id", sa.BigInteger),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
    sa.Column("max_attempts", sa.Integer, nullable=False, server_default="12"),
    sa.Column("recoveries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("crashes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("dispatch_id", name_type(32)),
    sa.Column("dispatch_failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("owner", name_type(80)),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease_until", UTCDateTime),
    sa.Column("cancel_requested", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("error_code", name_type(64)),
    sa.Column("error_detail", sa.Text),
    sa.Column("trace_parent", name_type(64)),
    sa.Column("created_at", UTCDateTime, nullable=False),
    sa.Column("started_at", UTCDateTime),
    sa.Column("finished_at", UTCDateTime),
    # A claim finds its rows by equality on the first four and reads on in the order of the rest.
    sa.Index(
        "ix_tasks_claim", "queue", "region", "state", "tenant_id", "priority", "order_at", "id"
    ),
    sa.Index("ix_tasks_lease", "state", "lease_until"),
    sa.Index("ix_tasks_due", "queue", "region", "state", "due_at"),
    # Of what is parked on a resource, the next of each tenant; NULL where a task waits for none.
    sa.Index("ix_tasks_resource", "resource_key", "tenant_id", "order_at"),
    # NULL where the task has ended or has no key: "unique while active".
    sa.Index("uq_tasks_dedupe", "queue", "dedupe_active", unique=True),
    sa.Index("uq_tasks_idempotency", "tenant_id", "idempotency_key", unique=True),
    sa.Index("ix_tasks_tenant", "tenant_id", "id"),
    sqlite_autoincrement=True,
    **_MYSQL,
)

task_attempts = sa.Table(
    "task_attempts",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("task_id", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("owner", name_type(80)),
    sa.Column("outcome", name_type(24), nullable=False),
    sa.Column("error_code", name_type(64)),
    sa.Column("error_detail", sa.Text),
    sa.Column("started_at", UTCDateTime),
    sa.Column("ended_at", UTCDateTime, nullable=False),
    sa.Index("ix_task_attempts_task", "task_id", "id"),
    **_MYSQL,
)

task_events = sa.Table(
    "task_events",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("task_id", sa.BigInteger, nullable=False),
    sa.Column("type", name_type(32), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created_at", UTCDateTime, nullable=False),
    sa.Index("ix_task_events_task", "task_id", "id"),
    sqlite_autoincrement=True,
    **_MYSQL,
)

task_audit = sa.Table(
    "task_audit",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("task_id", sa.BigInteger, nullable=False),
    sa.Column("tenant_id", name_type(64), nullable=False, server_default=""),
    sa.Column("action", name_type(32), nullable=False),
    sa.Column("actor", sa.String(128), nullable=False),
    sa.Column("reason", sa.String(512), nullable=False, server_default=""),
    sa.Column("state_before", name_type(12)),
    sa.Column("state_after", name_type(12)),
    sa.Column("created_at", UTCDateTime, nullable=False),
    sa.Index("ix_task_audit_task", "task_id", "id"),
    **_MYSQL,
)

ordering_keys = sa.Table(
    "ordering_keys",
    metadata,
    sa.Column("queue", name_type(32), primary_key=True),
    sa.Column("ordering_key", key_type(191), primary_key=True),
    sa.Column("policy", name_type(8), nullable=False, server_default="block"),
    sa.Column("paused", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("head", sa.BigInteger),
    **_MYSQL,
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant_id", name_type(64), nullable=False, server_default=""),
    sa.Column("open", sa.Integer, nullable=False, server_default="0"),
    sa.Column("completed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("cancelled", sa.Integer, nullable=False, server_default="0"),
    sa.Column("fire_on", name_type(16), nullable=False, server_default="ended"),
    sa.Column("callback", sa.JSON),
    sa.Column("created_at", UTCDateTime, nullable=False),
    sa.Column("sealed_at", UTCDateTime),
    sa.Column("fired_at", UTCDateTime),
    **_MYSQL,
)

queue_policies = sa.Table(
    "queue_policies",
    metadata,
    sa.Column("queue", name_type(32), primary_key=True),
    sa.Column("region", name_type(32), primary_key=True, server_default="*"),
    sa.Column("enabled", sa.SmallInteger, nullable=False, server_default="1"),
    sa.Column("paused", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("max_running", sa.Integer),
    sa.Column("max_running_per_tenant", sa.Integer),
    sa.Column("starts_per_second", sa.Float),
    sa.Column("start_burst", sa.Integer),
    sa.Column("fetch_ahead", sa.Integer),
    sa.Column("max_backlog", sa.Integer),
    sa.Column("time_limit_seconds", sa.Float),
    sa.Column("max_attempts", sa.Integer),
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("updated_at", UTCDateTime),
    **_MYSQL,
)

lanes = sa.Table(
    "lanes",
    metadata,
    sa.Column("queue", name_type(32), primary_key=True),
    sa.Column("region", name_type(32), primary_key=True, server_default=""),
    sa.Column("tenant_id", name_type(64), primary_key=True, server_default=""),
    sa.Column("priority", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("weight", sa.Integer, nullable=False, server_default="1"),
    sa.Column("watermark", UTCDateTime, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("touched_at", UTCDateTime, nullable=False),
    **_MYSQL,
)

#: When a queue of a region was last consumed by anybody; tells for how long nobody has been there.
consumed = sa.Table(
    "consumed",
    metadata,
    sa.Column("queue", name_type(32), primary_key=True),
    sa.Column("region", name_type(32), primary_key=True, server_default=""),
    sa.Column("last_seen", UTCDateTime, nullable=False),
    **_MYSQL,
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("node", name_type(64), primary_key=True),
    sa.Column("region", name_type(32), nullable=False, server_default=""),
    sa.Column("role", name_type(16), nullable=False),
    sa.Column("queues", sa.JSON, nullable=False),
    sa.Column("threads", sa.Integer, nullable=False, server_default="0"),
    sa.Column("threads_busy", sa.Integer, nullable=False, server_default="0"),
    sa.Column("mean_seconds", sa.JSON),
    sa.Column("version", sa.String(64)),
    sa.Column("started_at", UTCDateTime, nullable=False),
    sa.Column("last_seen", UTCDateTime, nullable=False),
    sa.Index("ix_nodes_last_seen", "last_seen"),
    **_MYSQL,
)
