"""Which methods an address has: what a 405 must name, over all routes of it."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.routing import APIRoute


class AllowedMethods:
    """The methods of every address below one prefix."""

    def __init__(self, prefix: str, routers: Iterable[APIRouter]) -> None:
        self._prefix = prefix
        self._routes = [
            route for router in routers for route in router.routes if isinstance(route, APIRoute)
        ]

    def at(self, path: str) -> str:
        """Return the value of an Allow header, empty for an address that there is not."""
        below = path.removeprefix(self._prefix)
        methods: set[str] = set()
        for route in self._routes:
            if route.path_regex.match(below):
                methods |= route.methods or set()
        return ", ".join(sorted(methods))
