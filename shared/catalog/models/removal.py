"""What is kept, removed, copied and let expire on purpose: holds, removals, copies, expiries."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base, KeyBytes
from shared.outbox.schema import BigId, name_type


class Hold(Base):
    """A promise that a content stays: as long as it is active, it holds a reference to the blob.

    `until` ends it by itself, None never. The row stays when it is over, as a record.
    """

    __tablename__ = "holds"
    __table_args__ = (
        sa.Index("ix_holds_version", "version_id", "state"),
        sa.Index("ix_holds_tenant", "tenant_id", "state", "id"),
        # The sweep's walk over those whose time is over.
        sa.Index("ix_holds_until", "state", "until"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    object_id: Mapped[int] = mapped_column(sa.BigInteger)
    version_id: Mapped[int] = mapped_column(sa.BigInteger)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(name_type(12))
    reason: Mapped[str] = mapped_column(sa.String(512))
    until: Mapped[dt.datetime | None]
    created_by: Mapped[str] = mapped_column(sa.String(128), server_default="")
    ended_by: Mapped[str | None] = mapped_column(sa.String(128))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class Removal(Base):
    """The deletion of all keys with a prefix, as they were when it was asked for.

    `newest_version_id` bounds what it may delete: a later version has a larger id. `cursor` is the
    last key that is done, and the counts are those up to it.
    """

    __tablename__ = "removals"
    __table_args__ = (
        sa.Index("ix_removals_bucket", "bucket_id", "id"),
        sa.Index("ix_removals_state", "state", "id"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    prefix: Mapped[str] = mapped_column("key_prefix", KeyBytes)
    is_dry_run: Mapped[int] = mapped_column(sa.SmallInteger, server_default="0")
    state: Mapped[str] = mapped_column(name_type(12))
    newest_version_id: Mapped[int] = mapped_column(sa.BigInteger)
    cursor: Mapped[str | None] = mapped_column("key_cursor", KeyBytes)
    deleted_keys: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    deleted_bytes: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    newer_keys: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    held_keys: Mapped[int] = mapped_column(sa.BigInteger, server_default="0")
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_by: Mapped[str] = mapped_column(sa.String(128), server_default="")
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class Copy(Base):
    """A copy or move whose bytes must first come to a channel of the target's bucket.

    Until it ends it holds a reference to the blob. `generation` is what the target's key had when
    the copy was asked for: whoever wrote there later has won.
    """

    __tablename__ = "copies"
    __table_args__ = (
        sa.Index("ix_copies_state", "state", "id"),
        sa.Index("ix_copies_bucket", "target_bucket_id", "id"),
        # Who else writes the key asks which copies to it are under way.
        sa.Index("ix_copies_target", "target_object_id", "state"),
        {"sqlite_autoincrement": True, **MYSQL},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    tenant_id: Mapped[str] = mapped_column(name_type(64))
    source_version_id: Mapped[int] = mapped_column(sa.BigInteger)
    blob_id: Mapped[int] = mapped_column(sa.BigInteger)
    target_bucket_id: Mapped[int] = mapped_column(sa.BigInteger)
    target_object_id: Mapped[int] = mapped_column(sa.BigInteger)
    target_key: Mapped[str] = mapped_column(KeyBytes)
    generation: Mapped[int] = mapped_column(sa.BigInteger)
    is_move: Mapped[int] = mapped_column(sa.SmallInteger, server_default="0")
    state: Mapped[str] = mapped_column(name_type(12))
    content_type: Mapped[str] = mapped_column(sa.String(255))
    user_metadata: Mapped[dict[str, str]]
    expires_at: Mapped[dt.datetime | None]
    version_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    error_code: Mapped[str | None] = mapped_column(name_type(64))
    created_at: Mapped[dt.datetime]
    ended_at: Mapped[dt.datetime | None]


class Expiry(Base):
    """When a version is to be deleted: the earlier of its own time and the bucket's rules.

    A version without a row never expires. `due_at` is what the rules gave when it was last
    computed; whoever deletes computes it anew under the key's lock.
    """

    __tablename__ = "expiries"
    __table_args__ = (
        sa.Index("ix_expiries_due", "due_at", "version_id"),
        MYSQL,
    )

    version_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    own_at: Mapped[dt.datetime | None]
    due_at: Mapped[dt.datetime]


class LifecycleWalk(Base):
    """A change of a bucket's lifecycle rules that its objects have not all heard of.

    `cursor` is the last key that has. The row goes at the end of the walk.
    """

    __tablename__ = "lifecycle_walks"
    __table_args__ = (MYSQL,)

    bucket_id: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    revision: Mapped[str] = mapped_column(name_type(32))
    cursor: Mapped[str | None] = mapped_column("key_cursor", KeyBytes)
    created_at: Mapped[dt.datetime]
