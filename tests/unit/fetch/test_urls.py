from __future__ import annotations

import pytest

from shared.fetch import FetchRefused, check_headers, parse_url
from shared.fetch.headers import travelling


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://a.example", "a.example", 80, "/"),
        ("https://A.Example:8443/x/y?z=1&q=%20#part", "a.example", 8443, "/x/y?z=1&q=%20"),
        ("http://1.2.3.4/x", "1.2.3.4", 80, "/x"),
        ("http://[2606:4700::1111]:81/", "2606:4700::1111", 81, "/"),
        ("https://xn--bcher-kva.example/ü", "xn--bcher-kva.example", 443, "/%C3%BC"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, path: str) -> None:
    target = parse_url(url)
    assert (target.host, target.port, target.path) == (host, port, path)


def test_the_host_header_names_the_port_only_where_it_is_not_the_schemes_own() -> None:
    assert parse_url("https://a.example:443/").host_header == "a.example"
    assert parse_url("http://a.example:443/").host_header == "a.example:443"
    assert parse_url("http://[::1]:8080/").host_header == "[::1]:8080"


@pytest.mark.parametrize(
    "url",
    [
        "", "a.example", "//a.example/", "ftp://a.example/", "file:///etc/passwd", "gopher://x/",
        "http:///x", "http://", "http://user@a.example/", "http://user:pass@a.example/",
        "http://a.example@10.0.0.1/", "http://a.example:0/", "http://a.example:65536/",
        "http://a.example:8o/", "http://a.example:/x:y@", "http://a example/", "http://a\t.example/",
        "http://a.example/\r\nX: y", "http://a.example/ x", "http://a.example\\@b.example/",
        "http://bücher.example/", "http://１２７.0.0.1/", "http://127。0。0。1/",
        "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/",
        "http://127.1/", "http://127.0.0.1./", "http://1.2.3.256/", "http://1.2.3.4.5/",
        "http://a.example./", "http://.example/", "http://a..example/", "http://-a.example/",
        "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1/", "http://[a.example]/",
        "http://%31%32%37.0.0.1/", f"http://{'a' * 64}.example/", f"http://{'a.' * 130}b/",
        "http://a.example/" + "x" * 9000,
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(FetchRefused) as caught:
        parse_url(url)
    assert caught.value.code == "url_invalid"


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "http://a.example/b"),
        ("b?c", "http://a.example/x/b?c"),
        ("//c.example/d", "http://c.example/d"),
        ("https://c.example", "https://c.example/"),
    ],
)
def test_a_redirect_leads_on_from_where_it_was(location: str, url: str) -> None:
    assert parse_url("http://a.example/x/y").join(location).url == url


@pytest.mark.parametrize("location", ["ftp://c.example/", "http://u@c.example/", "http://0x7f.1/"])
def test_a_redirect_is_judged_like_any_url(location: str) -> None:
    with pytest.raises(FetchRefused):
        parse_url("http://a.example/").join(location)


@pytest.mark.parametrize(
    "headers",
    [
        {"x\r\ny": "z"}, {"x": "a\r\nb: c"}, {"x": "a\nb"}, {"x": "a\0b"}, {"": "x"},
        {"Host": "b"}, {"Content-Length": "5"}, {"Transfer-Encoding": "chunked"},
        {"Proxy-Authorization": "x"}, {"Accept-Encoding": "gzip"}, {"x": "€"}, {"x": " a"},
        {"x": "é"}, {"x": "\x80"}, {"x": "\xff"}, {"é": "x"},
        {"x": "y" * 5000}, {f"x{n}": "y" for n in range(65)},
    ],
)  # fmt: skip
def test_headers_that_would_break_out_or_frame_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(FetchRefused) as caught:
        check_headers(headers)
    assert caught.value.code == "header_invalid"


def test_only_what_cannot_be_a_credential_travels_to_another_host() -> None:
    headers = check_headers(
        {"Authorization": "Bearer x", "X-Api-Key": "y", "Cookie": "z", "Range": "bytes=1-"}
    )
    assert travelling(headers) == {"range": "bytes=1-"}
