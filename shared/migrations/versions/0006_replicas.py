"""Replicas: the rules of buckets, and a row for each copy that a rule asks for.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    """Nothing yet."""
