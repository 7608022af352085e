"""Origins and pulls as they are shown: headers of sources by their names only."""

from __future__ import annotations

from pydantic import Field

from services.api.views import Time, View


class OriginSourceView(View):
    """Where bytes come from."""

    url: str
    header_names: list[str] = Field(description="Sent along; their values are never shown.")


class OriginRuleView(View):
    """Keys with a prefix, and the sources that are asked for them in order."""

    prefix: str
    mode: str
    wait_seconds: float
    max_bytes: int | None
    max_seconds: float
    missing_seconds: float
    failed_seconds: float
    tries: int
    sources: list[OriginSourceView]


class OriginView(View):
    """Rules in order: the first whose prefix fits a key counts."""

    rules: list[OriginRuleView]


class OriginPullView(View):
    """One fetch of an absent key."""

    id: int
    key: str
    state: str = Field(description="`open`, `stored`, `lost` to a user's write, or why it failed.")
    task_id: int | None
    version_id: int | None = Field(description="What it has become.")
    received_bytes: int
    error_code: str | None
    created_at: Time
    ended_at: Time | None
