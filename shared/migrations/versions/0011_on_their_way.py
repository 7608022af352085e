"""Uploads in parts and copies by the key that they are for: other writers ask what is coming."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_upload_sessions_key", "upload_sessions", ["bucket_id", "object_key", "state"]
    )
    op.create_index("ix_copies_target", "copies", ["target_object_id", "state"])


def downgrade() -> None:
    op.drop_index("ix_copies_target", table_name="copies")
    op.drop_index("ix_upload_sessions_key", table_name="upload_sessions")
