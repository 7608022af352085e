"""Replicas: the rules of buckets, and a row for each copy that a rule asks for.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_TABLES = ("location_audits", "replica_rules", "replicas")


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", _name(64), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("reason", _name(32), nullable=False, server_default=""),
        sa.Column("location_id", sa.BigInteger()),
        sa.Column("lost_location_id", sa.BigInteger()),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("losses", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("error_code", _name(64)),
        sa.Column("error_detail", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("completed_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_replicas_state", "replicas", ["state", "channel", "id"])
    op.create_index("ix_replicas_tenant", "replicas", ["tenant_id", "state", "id"])
    op.create_index("uq_replicas_blob", "replicas", ["blob_id", "channel"], unique=True)
    op.create_table(
        "replica_rules",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", _name(64), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("missing_now", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("missing", sa.BigInteger()),
        sa.Column("turned_at", _TIME, nullable=False),
        sa.Column("passed_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.Column("removed_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_replica_rules_turn", "replica_rules", ["state", "turned_at", "id"])
    op.create_index(
        "uq_replica_rules_channel", "replica_rules", ["bucket_id", "channel"], unique=True
    )
    op.create_table(
        "location_audits",
        sa.Column("channel", _name(64), primary_key=True),
        sa.Column("cursor", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("suspects", sa.JSON()),
        sa.Column("checked", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("lost", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("error_detail", sa.Text()),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("turned_at", _TIME, nullable=False),
        sa.Column("passed_at", _TIME),
        **_MYSQL,
    )
    # The look at what is really on a channel: its stored locations by id.
    op.create_index("ix_locations_channel", "locations", ["channel", "state", "id"])
    with op.batch_alter_table("buckets") as batch:
        batch.add_column(sa.Column("replica_channels", sa.JSON()))


def downgrade() -> None:
    with op.batch_alter_table("buckets") as batch:
        batch.drop_column("replica_channels")
    op.drop_index("ix_locations_channel", "locations")
    for table in _TABLES:
        op.drop_table(table)
