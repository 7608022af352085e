"""Reviews: what webhook reviewers need, re-reviews, quarantine.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_SQLITE: dict[str, Any] = {"sqlite_autoincrement": True}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.String(26).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    with op.batch_alter_table("reviews", table_kwargs=_SQLITE) as table:
        table.add_column(sa.Column("run_id", sa.BigInteger(), nullable=False, server_default="0"))
        table.add_column(sa.Column("task_id", sa.BigInteger()))
        table.drop_index("uq_reviews_version")
        table.create_index("uq_reviews_version", ["version_id", "run_id"], unique=True)
        table.create_index("ix_reviews_run", ["run_id", "state", "id"])
    with op.batch_alter_table("review_steps", table_kwargs=_SQLITE) as table:
        table.add_column(sa.Column("kind", _name(16), nullable=False, server_default=""))
        table.add_column(sa.Column("ask_id", _name(64)))
        table.add_column(sa.Column("asked_at", _TIME))
        table.add_column(sa.Column("answered_by", _name(191)))
    op.create_table(
        "webhook_reviewers",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("name", _name(32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status_url", sa.Text()),
        sa.Column("secrets", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index(
        "uq_webhook_reviewers_name", "webhook_reviewers", ["tenant_id", "name"], unique=True
    )
    op.create_table(
        "review_runs",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("tenant_id", _name(64), nullable=False),
        sa.Column("bucket_id", sa.BigInteger(), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("policy_version", _name(64), nullable=False),
        sa.Column("state", _name(12), nullable=False),
        sa.Column("until_id", sa.BigInteger(), nullable=False),
        sa.Column("cursor_id", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("seen", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("planned", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("started_by", sa.String(128), nullable=False, server_default=""),
        sa.Column("error_code", _name(64)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_review_runs_bucket", "review_runs", ["bucket_id", "id"])


def downgrade() -> None:
    op.drop_table("review_runs")
    op.drop_table("webhook_reviewers")
    with op.batch_alter_table("review_steps", table_kwargs=_SQLITE) as table:
        for name in ("answered_by", "asked_at", "ask_id", "kind"):
            table.drop_column(name)
    # The table keeps one review of each version.
    op.execute("DELETE FROM reviews WHERE run_id <> 0")
    with op.batch_alter_table("reviews", table_kwargs=_SQLITE) as table:
        table.drop_index("ix_reviews_run")
        table.drop_index("uq_reviews_version")
        table.drop_column("task_id")
        table.drop_column("run_id")
        table.create_index("uq_reviews_version", ["version_id"], unique=True)
