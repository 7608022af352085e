"""Rules of origins: where a key is found, what is refused, what is kept sealed."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from shared.catalog.origins.policy import OriginPolicy, StoredOrigin, fill, seal
from shared.catalog.secret_box import SecretBox
from shared.core.errors import InvalidError


@pytest.mark.parametrize(
    ("url", "key", "filled"),
    [
        ("http://a.example", "b/c", "http://a.example/b/c"),
        ("http://a.example/base/", "ü b#?%", "http://a.example/base/%C3%BC%20b%23%3F%25"),
        ("http://a.example/{key}.jpg", "p/q", "http://a.example/p/q.jpg"),
        ("http://a.example/x/{rest}", "p/q", "http://a.example/x/q"),
        ("http://a.example/?f={key}&r={rest}", "p/q&x", "http://a.example/?f=p%2Fq%26x&r=q%26x"),
        ("http://a.example/", "//evil.example/x", "http://a.example///evil.example/x"),
        ("http://a.example/", "@evil.example", "http://a.example/%40evil.example"),
    ],
)
def test_address_of_a_key(url: str, key: str, filled: str) -> None:
    assert fill(url, key=key, prefix="p/") == filled


def policy(*rules: dict[str, Any]) -> OriginPolicy:
    return OriginPolicy.model_validate({"rules": list(rules)})


def source(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {"url": url, "headers": headers}


@pytest.mark.parametrize(
    "rule",
    [
        {"sources": []},
        {"sources": [source("http://a.example/")] * 9},
        {"sources": [source("http://a.example/")], "mode": "later"},
        {"sources": [source("http://a.example/")], "wait_seconds": 61},
        {"sources": [source("http://a.example/")], "tries": 0},
        {"sources": [source("http://a.example/")], "max_seconds": float("nan")},
        {"sources": [source("http://{key}/")]},
        {"sources": [source("http://a.example:{key}/")]},
        {"sources": [source("http://{rest}.example/x")]},
        {"sources": [source("http://a.example/#{key}")]},
        {"sources": [source("http://a.example/", {"Host": "b"})]},
        {"sources": [source("http://a.example/", {"If-Match": "b"})]},
        {"sources": [{"url": "http://a.example/", "sealed": "x"}]},
    ],
)
def test_what_is_no_rule(rule: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        policy(rule)


def test_the_first_rule_that_fits_counts() -> None:
    stored = seal(
        policy(
            {"prefix": "a/", "sources": [source("http://one.example/")]},
            {"prefix": "a/b", "sources": [source("http://two.example/")]},
        ),
        None,
        None,
    )
    found = stored.rule_for("a/bc")
    assert found is not None
    assert found.url(0, "a/bc") == "http://one.example/a/bc"
    assert stored.rule(found.id) == found
    assert stored.rule_for("b") is None


def test_headers_are_sealed_kept_and_taken_away() -> None:
    secrets = SecretBox(SecretBox.generate_key())
    url = "http://a.example/"
    first = seal(policy({"sources": [source(url, {"X-Key": "s3cret"})]}), secrets, None)
    assert "s3cret" not in first.model_dump_json()
    again = StoredOrigin.model_validate(first.model_dump(mode="json"))
    assert again.rules[0].sources[0].headers(secrets) == {"x-key": "s3cret"}
    same = seal(policy({"sources": [source(url, {"X-Key": "s3cret"})]}), secrets, again)
    assert same == first
    kept = seal(policy({"prefix": "p", "sources": [source(url)]}), secrets, again)
    assert kept.rules[0].sources == first.rules[0].sources
    assert (
        seal(policy({"sources": [source(url, {})]}), secrets, again)
        .rules[0]
        .sources[0]
        .headers(secrets)
        == {}
    )
    elsewhere = seal(policy({"sources": [source("http://b.example/")]}), secrets, again)
    assert elsewhere.rules[0].sources[0].sealed is None
    with pytest.raises(InvalidError):
        seal(policy({"sources": [source(url, {"X-Key": "s3cret"})]}), None, None)


def test_a_rule_is_the_same_while_its_keys_and_sources_are() -> None:
    def rule_id(**terms: Any) -> str:
        sources = [source(terms.pop("url", "http://a.example/"))]
        return seal(policy({"sources": sources, **terms}), None, None).rules[0].id

    assert rule_id() == rule_id(tries=5, mode="background", wait_seconds=1)
    assert len({rule_id(), rule_id(prefix="a"), rule_id(url="http://b.example/")}) == 3


@pytest.mark.parametrize(
    ("url", "prefix", "key", "counts"),
    [
        ("https://a.example/base/{rest}", "old", "old../secret", False),
        ("https://a.example/base/{rest}", "old", "old./x", False),
        ("https://a.example/base/.{rest}", "old", "old.", False),
        ("https://a.example/base/{rest}", "old", "old/..x/x..", True),
        ("https://a.example/base/?of={rest}", "old", "old../secret", True),
        ("https://a.example/x/../base/{rest}", "old/", "old/x", True),
        ("https://a.example/base/", "old", "old../secret", True),
    ],
)
def test_no_key_leads_out_of_a_sources_path(url: str, prefix: str, key: str, counts: bool) -> None:
    policy = OriginPolicy.model_validate({"rules": [{"prefix": prefix, "sources": [{"url": url}]}]})
    assert (seal(policy, None, None).rule_for(key) is not None) is counts
