"""Tables in a fresh database, from the metadata itself, faster than by migrations."""

from __future__ import annotations

import sqlalchemy as sa


def create_outbox(url: str) -> None:
    """Create the outbox's tables."""
    from shared.outbox.schema import metadata

    _create(url, metadata)


def create_all(url: str) -> None:
    """Create the tables of the outbox and of the catalogue."""
    from shared.catalog.models import Base
    from shared.outbox.schema import metadata

    _create(url, metadata, Base.metadata)


def _create(url: str, *metadatas: sa.MetaData) -> None:
    engine = sa.create_engine(url)
    try:
        for metadata in metadatas:
            metadata.create_all(engine)
    finally:
        engine.dispose()
