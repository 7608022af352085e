"""The catalogue: tenants, buckets, objects, versions, blobs, locations, channels, reviews.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_KEY_BYTES = sa.LargeBinary().with_variant(mysql.VARBINARY(1024), "mysql", "mariadb")
_LIVE_SLOT = "CASE WHEN state IN ('condemned', 'live') THEN 1 END"
_TABLES = (
    "verdicts",
    "review_steps",
    "reviews",
    "versions",
    "objects",
    "revisions",
    "channels",
    "buckets",
    "locations",
    "blob_refs",
    "blobs",
    "idempotency",
    "api_keys",
    "tenants",
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
        "tenants",
        sa.Column("id", _name(64), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False, server_default=""),
        sa.Column("is_enabled", sa.SmallInteger(), nullable=False, server_default="1"),
        sa.Column("created_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "api_keys",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("label", sa.String(255), nullable=False, server_default=""),
        sa.Column("secret_sha256", _name(64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("role", _name(16), nullable=False, server_default=""),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("revoked_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant_id", "id"])
    op.create_index("uq_api_keys_secret", "api_keys", ["secret_sha256"], unique=True)
    op.create_table(
        "idempotency",
        sa.Column("tenant_id", _name(64), primary_key=True),
        sa.Column("idempotency_key", _text(191), primary_key=True),
        sa.Column("fingerprint", _name(64), nullable=False),
        sa.Column("status", sa.SmallInteger()),
        sa.Column("answer", sa.JSON()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_index("ix_idempotency_expires", "idempotency", ["expires_at"])
    op.create_table(
        "blobs",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("live_slot", sa.SmallInteger(), sa.Computed(_LIVE_SLOT, persisted=False)),
        sa.Column("generation", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("delete_after", _TIME),
        sa.Column("delete_owner", sa.BigInteger()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("stored_at", _TIME),
        sa.Column("deleted_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_blobs_state", "blobs", ["state", "id"])
    op.create_index(
        "uq_blobs_content", "blobs", ["tenant_id", "sha256", "size_bytes", "live_slot"], unique=True
    )
    op.create_table(
        "blob_refs",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("holder_kind", _name(12), nullable=False),
        sa.Column("holder_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_blob_refs_holder", "blob_refs", ["holder_kind", "holder_id"])
    op.create_index(
        "uq_blob_refs_holder", "blob_refs", ["blob_id", "holder_kind", "holder_id"], unique=True
    )
    op.create_table(
        "locations",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("channel", _name(64), nullable=False),
        sa.Column("physical_key", _name(255), nullable=False),
        sa.Column("state", _name(16), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("upload_id", _name(1024)),
        sa.Column("etag", _name(255)),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("next_try_at", _TIME),
        sa.Column("error_detail", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("stored_at", _TIME),
        sa.Column("condemned_at", _TIME),
        sa.Column("tombstone_at", _TIME),
        sa.Column("probed_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_locations_blob", "locations", ["blob_id", "state"])
    op.create_index("ix_locations_probe", "locations", ["state", "probed_at", "tombstone_at"])
    op.create_index("ix_locations_state", "locations", ["state", "id"])
    op.create_index("uq_locations_key", "locations", ["channel", "physical_key"], unique=True)
    op.create_table(
        "buckets",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("name", _name(63), nullable=False),
        sa.Column("region", _name(32), nullable=False, server_default=""),
        sa.Column("channels", sa.JSON(), nullable=False),
        sa.Column("review_policy", sa.JSON()),
        sa.Column("review_policy_version", _name(64)),
        sa.Column("max_object_bytes", sa.BigInteger()),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("uq_buckets_name", "buckets", ["tenant_id", "name"], unique=True)
    op.create_table(
        "channels",
        sa.Column("name", _name(64), primary_key=True),
        sa.Column("kind", _name(16), nullable=False),
        sa.Column("region", _name(32), nullable=False, server_default=""),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("credentials", sa.Text()),
        sa.Column("is_enabled", sa.SmallInteger(), nullable=False, server_default="1"),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "revisions",
        sa.Column("name", _name(32), primary_key=True),
        sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"),
        **_MYSQL,
    )
    op.create_table(
        "objects",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("object_key", _KEY_BYTES, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("current_version_id", sa.BigInteger()),
        sa.Column("served_version_id", sa.BigInteger()),
        sa.Column("is_listed", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("etag", _name(64)),
        sa.Column("content_type", sa.String(255)),
        sa.Column("modified_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_objects_listing", "objects", ["bucket_id", "is_listed", "object_key"])
    op.create_index("uq_objects_key", "objects", ["bucket_id", "object_key"], unique=True)
    op.create_table(
        "versions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("object_id", sa.BigInteger(), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("etag", _name(64), nullable=False),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("sniffed_type", sa.String(255)),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("staging_key", _name(191)),
        sa.Column("staging_until", _TIME),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("stored_at", _TIME),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_versions_blob", "versions", ["blob_id"])
    op.create_index("ix_versions_bucket", "versions", ["bucket_id", "state", "id"])
    op.create_index("ix_versions_open", "versions", ["object_id", "state"])
    op.create_index("ix_versions_staging", "versions", ["staging_key"])
    op.create_index("uq_versions_generation", "versions", ["object_id", "generation"], unique=True)
    op.create_table(
        "reviews",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("blob_id", sa.BigInteger(), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("policy_version", _name(64), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("reason", sa.String(512), nullable=False, server_default=""),
        sa.Column("decided_by", sa.String(128)),
        sa.Column("deadline_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("decided_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_reviews_deadline", "reviews", ["state", "deadline_at"])
    op.create_index("ix_reviews_tenant", "reviews", ["tenant_id", "state", "id"])
    op.create_index("uq_reviews_version", "reviews", ["version_id"], unique=True)
    op.create_table(
        "review_steps",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("review_id", sa.BigInteger(), nullable=False),
        sa.Column("step", _name(32), nullable=False),
        sa.Column("outcome", _name(12), nullable=False),
        sa.Column("detail", sa.String(512), nullable=False, server_default=""),
        sa.Column("deadline_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("uq_review_steps_step", "review_steps", ["review_id", "step"], unique=True)
    op.create_table(
        "verdicts",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("sha256", _name(64), nullable=False),
        sa.Column("policy_version", _name(64), nullable=False),
        sa.Column("declared_type", _name(255), nullable=False),
        sa.Column("outcome", _name(12), nullable=False),
        sa.Column("reason", sa.String(512), nullable=False, server_default=""),
        sa.Column("review_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_verdicts_content",
        "verdicts",
        ["tenant_id", "sha256", "policy_version", "declared_type"],
        unique=True,
    )


def downgrade() -> None:
    for name in _TABLES:
        op.drop_table(name)
