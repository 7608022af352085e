"""Regions that are not served as usual."""

from __future__ import annotations

import datetime as dt

from sqlalchemy.orm import Mapped, mapped_column

from shared.catalog.models.base import MYSQL, Base
from shared.outbox.schema import name_type


class RegionRow(Base):
    """A region that an operator has drained: new work goes to `drained_to` ('' is the base)."""

    __tablename__ = "regions"
    __table_args__ = (MYSQL,)

    name: Mapped[str] = mapped_column(name_type(32), primary_key=True)
    drained_to: Mapped[str | None] = mapped_column(name_type(32))
    updated_at: Mapped[dt.datetime]
