"""Event notifications: subscriptions and deliveries; presigned links; regions.

The columns are written out, so that this step stays what it was when the models move on.
"""

from __future__ import annotations

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    """Nothing yet."""
