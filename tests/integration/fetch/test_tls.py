"""https: the certificate is the name's, whatever address was pinned."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from shared.core.clock import Deadline
from shared.fetch import Fetcher, FetchPolicy, FetchUnavailable
from shared.fetch.client import tls_context
from tests.support.authority import Authority
from tests.support.upstream import Asked, Upstream, answer, redirect

POLICY = FetchPolicy(allow=["127.0.0.1:*"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[Upstream]:
    with Upstream(tls=authority.server("files.example")) as upstream:
        upstream.routes["/a"] = answer(b"secret")
        yield upstream


def get(fetcher: Fetcher, url: str) -> bytes:
    with fetcher.open("GET", url, deadline=Deadline(10)) as got:
        return got.read()


def trusting(authority: Authority) -> Fetcher:
    tls = tls_context(str(authority.ca_file))
    return Fetcher(POLICY, resolver=lambda host: ["127.0.0.1"], tls=tls)


def test_the_name_is_asked_for_and_proved(authority: Authority, server: Upstream) -> None:
    url = f"https://files.example:{server.port}/a"
    assert get(trusting(authority), url) == b"secret"
    assert server.asked[0].headers["host"] == f"files.example:{server.port}"


def test_a_certificate_of_another_name_is_refused(authority: Authority, server: Upstream) -> None:
    for host in ("other.example", "127.0.0.1"):
        with pytest.raises(FetchUnavailable) as caught:
            get(trusting(authority), f"https://{host}:{server.port}/a")
        assert caught.value.code == "certificate_invalid"
    assert server.asked == []


def test_an_unknown_authority_is_refused(server: Upstream) -> None:
    fetcher = Fetcher(POLICY, resolver=lambda host: ["127.0.0.1"])
    with pytest.raises(FetchUnavailable) as caught:
        get(fetcher, f"https://files.example:{server.port}/a")
    assert caught.value.code == "certificate_invalid"


def test_a_server_that_speaks_no_tls_is_refused(authority: Authority) -> None:
    with Upstream() as plain, pytest.raises(FetchUnavailable) as caught:
        get(trusting(authority), f"https://files.example:{plain.port}/a")
    assert caught.value.code == "tls_failed"


def test_a_body_cut_off_without_a_length_is_told(authority: Authority) -> None:
    def cut(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        # Without TLS's own end.
        os.close(connection.detach())

    with Upstream(tls=authority.server("cut.example")) as server:
        server.routes["/a"] = cut
        with pytest.raises(FetchUnavailable):
            get(trusting(authority), f"https://cut.example:{server.port}/a")


def test_a_redirect_down_to_http_takes_no_credentials_along(
    authority: Authority, server: Upstream
) -> None:
    with Upstream() as plain:
        plain.routes["/b"] = answer(b"open")
        server.routes["/a"] = redirect(f"http://files.example:{plain.port}/b")
        with trusting(authority).open(
            "GET",
            f"https://files.example:{server.port}/a",
            headers={"authorization": "Bearer x"},
            deadline=Deadline(10),
        ) as got:
            assert got.read() == b"open"
        assert "authorization" not in plain.asked[0].headers
