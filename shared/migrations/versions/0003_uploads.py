"""Resumable uploads: sessions and their parts.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    """Make the two tables."""
    op.create_table(
        "upload_sessions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("public_id", _name(32), nullable=False),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("operation_id", _text(191), nullable=False),
        sa.Column("fingerprint", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("object_key", _KEY_BYTES, nullable=False),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("sha256", _name(64)),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("conditions", sa.JSON()),
        sa.Column("lifetime", sa.JSON()),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("part_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("completion", _name(64)),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("version_id", sa.BigInteger()),
        sa.Column("result", sa.JSON()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    for name, columns, is_unique in (
        ("uq_upload_sessions_public", ["public_id"], True),
        ("uq_upload_sessions_operation", ["tenant_id", "operation_id"], True),
        ("uq_upload_sessions_version", ["version_id"], True),
        ("ix_upload_sessions_tenant", ["tenant_id", "state", "id"], False),
        ("ix_upload_sessions_expiry", ["state", "expires_at", "id"], False),
    ):
        op.create_index(name, "upload_sessions", columns, unique=is_unique)
    op.create_table(
        "upload_parts",
        sa.Column("session_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("staging_key", _name(191), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("md5", _name(32), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("uq_upload_parts_staging", "upload_parts", ["staging_key"], unique=True)


def downgrade() -> None:
    """Take them away."""
    op.drop_table("upload_parts")
    op.drop_table("upload_sessions")
