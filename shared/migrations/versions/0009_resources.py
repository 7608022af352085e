"""The outbox: what parked tasks and held slots are found by.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_tasks_resource", "tasks", ["resource_key", "tenant_id", "order_at"])


def downgrade() -> None:
    op.drop_index("ix_tasks_resource", "tasks")
