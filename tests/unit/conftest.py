"""Unit tests use no network: what needs a server, even one on loopback, stands in another tier."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

_NETWORK = (socket.AF_INET, socket.AF_INET6)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex", "listen"):
        monkeypatch.setattr(socket.socket, name, _refusing(getattr(socket.socket, name)))


def _refusing(method: Callable[..., object]) -> Callable[..., object]:
    def refuse_network(self: socket.socket, *arguments: object) -> object:
        if self.family in _NETWORK:
            pytest.fail(f"a unit test used the network: {method.__name__}{arguments}")
        return method(self, *arguments)

    return refuse_network
