"""Regions: when their queues were consumed, where their work goes; what buckets allow.

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
    with op.batch_alter_table("buckets") as buckets:
        buckets.add_column(sa.Column("region_fallback_seconds", sa.Double()))


def downgrade() -> None:
    with op.batch_alter_table("buckets") as buckets:
        buckets.drop_column("region_fallback_seconds")
    op.drop_table("regions")
    op.drop_table("consumed")
