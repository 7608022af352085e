"""The client against a server that answers whatever a test wants, on loopback."""

from __future__ import annotations

import gzip
import itertools
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from shared.core.clock import Deadline
from shared.core.errors import CancelRequested
from shared.fetch import (
    Fetcher,
    FetchError,
    FetchLimits,
    FetchPolicy,
    FetchRefused,
    FetchTimeout,
    FetchTooLarge,
    FetchUnavailable,
    Hop,
)
from tests.support.upstream import Asked, Upstream, answer, redirect

LOOPBACK = FetchPolicy(allow=["127.0.0.1:*"])


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher(LOOPBACK)


def get(
    fetcher: Fetcher, url: str, *, seconds: float = 10.0, headers: dict[str, str] | None = None,
    **limits: float,
) -> bytes:  # fmt: skip
    with fetcher.open(
        "GET", url, headers=headers, limits=FetchLimits(**limits), deadline=Deadline(seconds)
    ) as got:
        return got.read()


def refused(code: str, act: Callable[[], object]) -> FetchError:
    with pytest.raises(FetchError) as caught:
        act()
    assert caught.value.code == code
    return caught.value


def test_a_body_comes_with_its_head(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/a?b=1"] = answer(b"hello", ETag='"x"', Content_Type="text/plain")
    with fetcher.open("GET", f"{upstream.url}/a?b=1", deadline=Deadline(10)) as got:
        assert (got.status, got.length, got.headers["etag"]) == (200, 5, '"x"')
        assert got.read() == b"hello"
        assert got.hops == (Hop("127.0.0.1", upstream.port, "127.0.0.1", "127.0.0.1:*"),)
    (asked,) = upstream.asked
    assert asked.headers["host"] == f"127.0.0.1:{upstream.port}"
    assert asked.headers["accept-encoding"] == "identity"
    assert "range" not in asked.headers


def test_a_body_is_posted(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/hook"] = answer(b"ok")
    with fetcher.open(
        "POST",
        f"{upstream.url}/hook",
        headers={"Content-Type": "application/json"},
        body=b'{"a":1}',
        deadline=Deadline(10),
    ) as got:
        assert got.read() == b"ok"
    assert upstream.asked[0].body == b'{"a":1}'


def test_the_environments_proxies_are_not_asked(
    upstream: Upstream, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    upstream.routes["/a"] = answer(b"direct")
    assert get(fetcher, f"{upstream.url}/a") == b"direct"


# -- where it goes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::a00:1]/",
        "http://[2002:a00:1::1]/", "http://100.64.0.1/", "http://0.0.0.0/",
    ],
)  # fmt: skip
def test_a_private_address_is_refused_when_saved_and_when_used(url: str) -> None:
    fetcher = Fetcher(FetchPolicy())
    refused("address_forbidden", lambda: fetcher.vet(url))
    refused("address_forbidden", lambda: get(fetcher, url))


@pytest.mark.parametrize(
    "found",
    [
        ["1.1.1.1", "10.0.0.1"],
        ["10.0.0.1"],
        ["2606:4700::1111", "fe80::1%eth0"],
        ["1.1.1.1", "::ffff:10.0.0.1"],
        ["1.1.1.1", "2002:a00:1::1"],
    ],
)
def test_one_address_that_is_not_public_is_enough(found: list[str]) -> None:
    fetcher = Fetcher(FetchPolicy(), resolver=lambda host: found)
    refused("address_forbidden", lambda: fetcher.vet("http://mixed.example/"))
    refused("address_forbidden", lambda: get(fetcher, "http://mixed.example/"))


def test_a_name_that_is_rebound_is_refused_when_it_is_used(upstream: Upstream) -> None:
    answers = iter([["1.1.1.1"], ["127.0.0.1"]])
    fetcher = Fetcher(
        FetchPolicy(ports=[upstream.port]), resolver=lambda host: next(answers)
    )  # fmt: skip
    url = f"http://rebound.example:{upstream.port}/"
    fetcher.vet(url)
    refused("address_forbidden", lambda: get(fetcher, url))
    assert upstream.asked == []


def test_what_was_vetted_is_connected_to_without_a_second_look_up(upstream: Upstream) -> None:
    asked: list[str] = []

    def rebinding(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    upstream.routes["/a"] = answer(b"pinned")
    policy = FetchPolicy(allow=[f"127.0.0.1:{upstream.port}"])
    url = f"http://pinned.example:{upstream.port}/a"
    assert get(Fetcher(policy, resolver=rebinding), url) == b"pinned"
    assert asked == ["pinned.example"]
    assert upstream.asked[0].headers["host"] == f"pinned.example:{upstream.port}"


def test_a_port_that_is_not_allowed_is_refused_before_a_look_up() -> None:
    fetcher = Fetcher(FetchPolicy(), resolver=lambda host: pytest.fail("it was looked up"))
    refused("port_forbidden", lambda: fetcher.vet("http://a.example:6379/"))
    refused("port_forbidden", lambda: get(fetcher, "http://a.example:22/"))


def test_a_name_that_is_not_known_is_an_error_that_may_pass() -> None:
    def unknown(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    fetcher = Fetcher(FetchPolicy(), resolver=unknown)
    error = refused("name_unknown", lambda: fetcher.vet("http://nowhere.example/"))
    assert isinstance(error, FetchUnavailable)


def test_a_resolver_that_hangs_ends_within_its_time(upstream: Upstream) -> None:
    def hangs(host: str) -> list[str]:
        upstream.stopped(10)
        return ["1.1.1.1"]

    fetcher = Fetcher(FetchPolicy(), resolver=hangs)
    began = time.monotonic()
    refused("name_timeout", lambda: get(fetcher, "http://slow.example/", connect_seconds=0.3))
    assert time.monotonic() - began < 3


def test_a_dead_address_is_passed_over_for_the_next(upstream: Upstream) -> None:
    upstream.routes["/a"] = answer(b"second")
    policy = FetchPolicy(allow=["127.0.0.0/8:*"])
    fetcher = Fetcher(policy, resolver=lambda host: ["127.0.0.9", "127.0.0.1"])
    assert get(fetcher, f"http://two.example:{upstream.port}/a") == b"second"


# -- redirects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://169.254.169.254/latest/meta-data/", "address_forbidden"),
        ("http://[::ffff:10.0.0.1]/", "address_forbidden"),
        ("http://mixed.example/", "address_forbidden"),
        ("http://0x7f000001/", "url_invalid"),
        ("file:///etc/passwd", "url_invalid"),
        ("http://user:secret@b.example/", "url_invalid"),
        ("http://b.example/a b", "redirect_invalid"),
    ],
)
def test_a_redirect_is_vetted_like_the_first_address(
    upstream: Upstream, location: str, code: str
) -> None:
    fetcher = Fetcher(LOOPBACK, resolver=lambda host: ["1.1.1.1", "10.0.0.1"])
    upstream.routes["/a"] = redirect(location)
    error = refused(code, lambda: get(fetcher, f"{upstream.url}/a"))
    assert isinstance(error, FetchRefused)


def test_a_redirect_to_a_forbidden_port_is_refused(upstream: Upstream) -> None:
    policy = FetchPolicy(allow=[f"127.0.0.1:{upstream.port}"])
    upstream.routes["/a"] = redirect("http://127.0.0.1:6379/")
    refused("port_forbidden", lambda: get(Fetcher(policy), f"{upstream.url}/a"))


def test_five_redirects_are_followed_and_not_ten(upstream: Upstream, fetcher: Fetcher) -> None:
    for hop in range(10):
        upstream.routes[f"/{hop}"] = redirect(f"/{hop + 1}")
    upstream.routes["/10"] = answer(b"end")
    assert get(fetcher, f"{upstream.url}/5") == b"end"
    refused("too_many_redirects", lambda: get(fetcher, f"{upstream.url}/0"))
    assert upstream.count("/5") == 2
    assert upstream.count("/6") == 1


def test_credentials_stay_with_the_host_they_are_for(fetcher: Fetcher) -> None:
    headers = {"Authorization": "Bearer s", "X-Api-Key": "k", "Cookie": "c", "Accept": "image/*"}
    with Upstream() as first, Upstream() as second:
        first.routes["/a"] = redirect("/b")
        first.routes["/b"] = redirect(f"{second.url}/c")
        second.routes["/c"] = answer(b"ok")
        assert get(fetcher, f"{first.url}/a", headers=headers) == b"ok"
        assert first.asked[1].headers["authorization"] == "Bearer s"
        sent = second.asked[0].headers
        assert sent.keys().isdisjoint({"authorization", "x-api-key", "cookie"})
        assert sent["accept"] == "image/*"


def test_a_post_is_not_sent_on(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/a"] = redirect("/b")
    with fetcher.open("POST", f"{upstream.url}/a", body=b"x", deadline=Deadline(10)) as got:
        assert got.status == 302
    assert len(upstream.asked) == 1


# -- what comes --------------------------------------------------------------------------------


def test_a_body_must_be_as_long_as_announced(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/short"] = answer(b"12345", announced=10)
    upstream.routes["/long"] = answer(b"1234567890", announced=5)
    upstream.routes["/two"] = raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6", b"x")
    refused("body_short", lambda: get(fetcher, f"{upstream.url}/short"))
    refused("body_long", lambda: get(fetcher, f"{upstream.url}/long"))
    refused("answer_broken", lambda: get(fetcher, f"{upstream.url}/two"))


def test_a_body_without_a_length_ends_with_its_chunks(upstream: Upstream, fetcher: Fetcher) -> None:
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"
    upstream.routes["/whole"] = raw(head, b"5\r\nhello\r\n0\r\n\r\n")
    upstream.routes["/cut"] = raw(head, b"5\r\nhello\r\n")
    assert get(fetcher, f"{upstream.url}/whole") == b"hello"
    refused("answer_broken", lambda: get(fetcher, f"{upstream.url}/cut"))


def test_more_bytes_than_the_caller_takes_are_refused(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/said"] = answer(b"", announced=11)
    upstream.routes["/unsaid"] = raw("HTTP/1.1 200 OK", b"x" * 11)
    for url in (f"{upstream.url}/said", f"{upstream.url}/unsaid"):
        with pytest.raises(FetchTooLarge):
            get(fetcher, url, max_body_bytes=10)


def test_a_gzip_bomb_stays_as_small_as_it_came(upstream: Upstream, fetcher: Fetcher) -> None:
    bomb = gzip.compress(bytes(20_000_000))
    upstream.routes["/bomb"] = answer(bomb, Content_Encoding="gzip")
    assert get(fetcher, f"{upstream.url}/bomb", max_body_bytes=len(bomb)) == bomb
    assert len(bomb) < 100_000


@pytest.mark.parametrize(
    "head",
    [
        "nonsense",
        "HTTP/1.1 200 OK\r\nX: " + "y" * 100_000,
        "HTTP/1.1 200 OK\r\n" + "\r\n".join(f"X-{n}: {'y' * 60}" for n in range(1000)),
        "HTTP/1.1 200 OK\r\nX\0: y",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
        "HTTP/1.1 101 Switching Protocols",
        "\r\n".join(["HTTP/1.1 103 Early Hints\r\n"] * 20),
    ],
)
def test_a_head_that_is_none_is_refused(upstream: Upstream, fetcher: Fetcher, head: str) -> None:
    upstream.routes["/a"] = raw(head, b"")
    refused("answer_broken", lambda: get(fetcher, f"{upstream.url}/a"))


def test_a_line_break_in_an_answers_header_reaches_no_caller(
    upstream: Upstream, fetcher: Fetcher
) -> None:
    upstream.routes["/a"] = raw('HTTP/1.1 200 OK\r\nETag: "a\rb"\r\nContent-Length: 0', b"")
    refused("answer_broken", lambda: get(fetcher, f"{upstream.url}/a"))


# -- how long it takes -------------------------------------------------------------------------


def test_a_head_that_drips_ends_within_its_time(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/drip"] = drip(upstream, b"HTTP/1.1 200 OK\r\nX: ", b"y")
    began = time.monotonic()
    error = refused("head_timeout", lambda: get(fetcher, f"{upstream.url}/drip", head_seconds=0.5))
    assert isinstance(error, FetchTimeout)
    assert time.monotonic() - began < 5


def test_a_body_that_drips_ends_within_the_total(upstream: Upstream, fetcher: Fetcher) -> None:
    upstream.routes["/drip"] = drip(upstream, b"HTTP/1.1 200 OK\r\n\r\n", b"y")
    refused("total_timeout", lambda: get(fetcher, f"{upstream.url}/drip", seconds=0.6))


def test_a_body_that_stops_ends_within_the_idle_time(upstream: Upstream, fetcher: Fetcher) -> None:
    def stops(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        upstream.stopped(10)

    upstream.routes["/stop"] = stops
    refused("idle_timeout", lambda: get(fetcher, f"{upstream.url}/stop", idle_seconds=0.3))


def test_the_callers_check_ends_a_silent_exchange(upstream: Upstream, fetcher: Fetcher) -> None:
    def silent(connection: socket.socket, asked: Asked) -> None:
        upstream.stopped(10)

    upstream.routes["/silent"] = silent
    calls = itertools.count()

    def check() -> None:
        if next(calls) > 4:
            raise CancelRequested

    began = time.monotonic()
    with (
        pytest.raises(CancelRequested),
        fetcher.open("GET", f"{upstream.url}/silent", deadline=Deadline(30), check=check),
    ):
        pytest.fail("it answered")
    assert time.monotonic() - began < 5


def raw(head: str, body: bytes) -> Callable[[socket.socket, Asked], None]:
    def script(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)

    return script


def drip(upstream: Upstream, begin: bytes, more: bytes) -> Callable[[socket.socket, Asked], None]:
    def script(connection: socket.socket, asked: Asked) -> None:
        connection.sendall(begin)
        while not upstream.stopped(0.05):
            connection.sendall(more)

    return script
