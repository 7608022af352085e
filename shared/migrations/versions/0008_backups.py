"""Backups and restores: targets, runs, items, manifests, losses.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
_LIVE_SLOT = "CASE WHEN state = 'stored' AND kind = 'content' THEN 1 END"
_TABLES = (
    "restore_items",
    "restores",
    "losses",
    "backup_contents",
    "backup_items",
    "backup_runs",
)


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    _backups()
    _restores()
    op.create_index("ix_versions_ended", "versions", ["bucket_id", "ended_at", "id"])
    with op.batch_alter_table("buckets") as batch:
        batch.add_column(sa.Column("backup", sa.JSON()))


def _backups() -> None:
    op.create_table(
        "backup_runs",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("target", _name(64), nullable=False),
        sa.Column("slot", _name(64), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("snapshot_version_id", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("snapshot_at", _TIME),
        sa.Column("cursor", sa.JSON()),
        sa.Column("counts", sa.JSON()),
        sa.Column("manifest_id", sa.BigInteger()),
        sa.Column("manifest_sha256", _name(64)),
        sa.Column("pins_until", _TIME),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_backup_runs_slot", "backup_runs", ["bucket_id", "target", "slot"], unique=True
    )
    op.create_index("ix_backup_runs_state", "backup_runs", ["state", "id"])
    op.create_index("ix_backup_runs_bucket", "backup_runs", ["bucket_id", "state", "snapshot_at"])
    op.create_table(
        "backup_items",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("is_reused", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("content_id", sa.BigInteger()),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("uq_backup_items_blob", "backup_items", ["run_id", "blob_id"], unique=True)
    op.create_index("ix_backup_items_state", "backup_items", ["run_id", "state", "id"])
    op.create_index("ix_backup_items_content", "backup_items", ["content_id", "run_id"])
    op.create_index("ix_backup_items_blob", "backup_items", ["blob_id", "run_id"])
    op.create_table(
        "backup_contents",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("target", _name(64), nullable=False),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("kind", _name(12), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("live_slot", sa.SmallInteger(), sa.Computed(_LIVE_SLOT, persisted=False)),
        sa.Column("physical_key", _name(255), nullable=False),
        sa.Column("state", _name(16), nullable=False),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("upload_id", _name(1024)),
        sa.Column("etag", _name(255)),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("next_try_at", _TIME),
        sa.Column("error_detail", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("stored_at", _TIME),
        sa.Column("unneeded_at", _TIME),
        sa.Column("tombstone_at", _TIME),
        sa.Column("probed_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_backup_contents_key", "backup_contents", ["target", "physical_key"], unique=True
    )
    op.create_index(
        "uq_backup_contents_content",
        "backup_contents",
        ["target", "tenant_id", "sha256", "size_bytes", "live_slot"],
        unique=True,
    )
    op.create_index("ix_backup_contents_state", "backup_contents", ["state", "id"])
    op.create_index(
        "ix_backup_contents_tenant", "backup_contents", ["target", "tenant_id", "state", "id"]
    )
    op.create_index(
        "ix_backup_contents_sha256", "backup_contents", ["tenant_id", "sha256", "size_bytes"]
    )


def _restores() -> None:
    op.create_table(
        "losses",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("location_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", _name(64), nullable=False),
        sa.Column("state", _name(16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("found_by", _name(16), nullable=False),
        sa.Column("detail", sa.String(512), nullable=False, server_default=""),
        sa.Column("restored_from", _name(191)),
        sa.Column("restored_location_id", sa.BigInteger()),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("uq_losses_location", "losses", ["location_id"], unique=True)
    op.create_index("ix_losses_state", "losses", ["state", "id"])
    op.create_index("ix_losses_tenant", "losses", ["tenant_id", "state", "id"])
    op.create_table(
        "restores",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("mode", _name(12), nullable=False),
        sa.Column("prefix", _KEY_BYTES, nullable=False),
        sa.Column("at", _TIME),
        sa.Column("policy", _name(12), nullable=False, server_default="never"),
        sa.Column("is_dry_run", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("cursor", sa.JSON()),
        sa.Column("counts", sa.JSON()),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_restores_bucket", "restores", ["bucket_id", "id"])
    op.create_index("ix_restores_state", "restores", ["state", "id"])
    op.create_table(
        "restore_items",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("restore_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("object_key", _KEY_BYTES, nullable=False),
        sa.Column("outcome", _name(16), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.BigInteger()),
        sa.Column("detail", sa.String(512), nullable=False, server_default=""),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_restore_items_position", "restore_items", ["restore_id", "position"], unique=True
    )
    op.create_index("ix_restore_items_outcome", "restore_items", ["restore_id", "outcome", "id"])


def downgrade() -> None:
    with op.batch_alter_table("buckets") as batch:
        batch.drop_column("backup")
    op.drop_index("ix_versions_ended", "versions")
    for table in _TABLES:
        op.drop_table(table)
