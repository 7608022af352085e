"""Notifications and deliveries; regions: who consumes them, where their work goes.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    op.create_table(
        "consumed",
        sa.Column("queue", _name(32), primary_key=True),
        sa.Column("region", _name(32), primary_key=True, server_default=""),
        sa.Column("last_seen", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "regions",
        sa.Column("name", _name(32), primary_key=True),
        sa.Column("drained_to", _name(32)),
        sa.Column("updated_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "subscriptions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger()),
        sa.Column("prefix", _KEY_BYTES, nullable=False),
        sa.Column("url", sa.String(2048), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=False),
        sa.Column("is_enabled", sa.SmallInteger(), nullable=False, server_default="1"),
        sa.Column("disabled_code", _name(64)),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("failing_until", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_subscriptions_tenant", "subscriptions", ["tenant_id", "id"])
    op.create_table(
        "notifications",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("type", _name(32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_notifications_tenant", "notifications", ["tenant_id", "id"])
    op.create_index("ix_notifications_created", "notifications", ["created_at"])
    op.create_table(
        "deliveries",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("notification_id", sa.BigInteger(), nullable=False),
        sa.Column("subscription_id", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("status", sa.Integer()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_deliveries_event", "deliveries", ["notification_id", "subscription_id"], unique=True
    )
    op.create_index("ix_deliveries_subscription", "deliveries", ["subscription_id", "id"])
    with op.batch_alter_table("buckets") as buckets:
        buckets.add_column(sa.Column("region_fallback_seconds", sa.Double()))
        buckets.add_column(
            sa.Column("instant_upload", _name(12), nullable=False, server_default="hash")
        )


def downgrade() -> None:
    with op.batch_alter_table("buckets") as buckets:
        buckets.drop_column("instant_upload")
        buckets.drop_column("region_fallback_seconds")
    for name in ("deliveries", "notifications", "subscriptions"):
        op.drop_table(name)
    op.drop_table("regions")
    op.drop_table("consumed")
