"""Origin pulls: the rules of buckets, pulls, what was not there, what has come so far.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
_OPEN_SLOT = "CASE WHEN state = 'open' THEN 1 END"


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    op.create_table(
        "origin_pulls",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("object_key", _KEY_BYTES, nullable=False),
        sa.Column("rule", _name(32), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("open_slot", sa.SmallInteger(), sa.Computed(_OPEN_SLOT, persisted=False)),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("version_id", sa.BigInteger()),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("hops", sa.JSON()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_origin_pulls_open",
        "origin_pulls",
        ["bucket_id", "object_key", "rule", "open_slot"],
        unique=True,
    )
    op.create_index("ix_origin_pulls_state", "origin_pulls", ["state", "id"])
    op.create_index("ix_origin_pulls_ended", "origin_pulls", ["ended_at"])
    op.create_table(
        "origin_misses",
        sa.Column("bucket_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("object_key", _KEY_BYTES, primary_key=True),
        sa.Column("rule", _name(32), nullable=False),
        sa.Column("code", _name(64), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_origin_misses_expires", "origin_misses", ["expires_at"])
    op.create_table(
        "origin_segments",
        sa.Column("pull_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("staging_key", _name(191), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("uq_origin_segments_staging", "origin_segments", ["staging_key"], unique=True)
    with op.batch_alter_table("buckets", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.add_column(sa.Column("origin", sa.JSON()))


def downgrade() -> None:
    with op.batch_alter_table("buckets", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.drop_column("origin")
    for name in ("origin_segments", "origin_misses", "origin_pulls"):
        op.drop_table(name)
