"""Deletion by prefix, holds, copies and moves, expiry.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
_TABLES = ("lifecycle_walks", "expiries", "copies", "removals", "holds")


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def upgrade() -> None:
    op.create_table(
        "holds",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("object_id", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("reason", sa.String(512), nullable=False),
        sa.Column("until", _TIME),
        sa.Column("created_by", sa.String(128), nullable=False, server_default=""),
        sa.Column("ended_by", sa.String(128)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_holds_version", "holds", ["version_id", "state"])
    op.create_index("ix_holds_tenant", "holds", ["tenant_id", "state", "id"])
    op.create_index("ix_holds_until", "holds", ["state", "until"])
    op.create_table(
        "removals",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("key_prefix", _KEY_BYTES, nullable=False),
        sa.Column("is_dry_run", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("newest_version_id", sa.BigInteger(), nullable=False),
        sa.Column("key_cursor", _KEY_BYTES),
        _count("deleted_keys"),
        _count("deleted_bytes"),
        _count("newer_keys"),
        _count("held_keys"),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_by", sa.String(128), nullable=False, server_default=""),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_removals_bucket", "removals", ["bucket_id", "id"])
    op.create_index("ix_removals_state", "removals", ["state", "id"])
    op.create_table(
        "copies",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("source_version_id", sa.BigInteger(), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("target_bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("target_object_id", sa.BigInteger(), nullable=False),
        sa.Column("target_key", _KEY_BYTES, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("is_move", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("version_id", sa.BigInteger()),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_copies_state", "copies", ["state", "id"])
    op.create_index("ix_copies_bucket", "copies", ["target_bucket_id", "id"])
    op.create_table(
        "expiries",
        sa.Column("version_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("own_at", _TIME),
        sa.Column("due_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_expiries_due", "expiries", ["due_at", "version_id"])
    op.create_table(
        "lifecycle_walks",
        sa.Column("bucket_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("revision", _name(32), nullable=False),
        sa.Column("key_cursor", _KEY_BYTES),
        sa.Column("created_at", _TIME, nullable=False),
        **_MYSQL,
    )
    with op.batch_alter_table("buckets", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.add_column(sa.Column("lifecycle", sa.JSON()))


def downgrade() -> None:
    with op.batch_alter_table("buckets", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.drop_column("lifecycle")
    for table_name in _TABLES:
        op.drop_table(table_name)
