from __future__ import annotations

import ipaddress

import pytest

from shared.core.errors import InvalidError
from shared.fetch import FetchPolicy


def permits(policy: FetchPolicy, host: str, port: int, address: str) -> bool:
    return policy.permits(host, port, ipaddress.ip_address(address))


def test_without_an_allow_list_only_public_addresses_on_the_usual_ports() -> None:
    policy = FetchPolicy()
    assert permits(policy, "a.example", 443, "1.1.1.1")
    assert permits(policy, "a.example", 80, "2606:4700::1111")
    assert not permits(policy, "a.example", 8080, "1.1.1.1")
    assert not permits(policy, "a.example", 443, "10.0.0.1")
    assert not policy.permits_port("a.example", 22)


def test_a_network_is_allowed_on_the_general_ports_unless_it_names_its_own() -> None:
    policy = FetchPolicy(allow=["10.0.0.0/8", "192.168.1.9:8080", "[fd00::/8]:*"])
    assert permits(policy, "x", 443, "10.2.3.4")
    assert not permits(policy, "x", 6379, "10.2.3.4")
    assert permits(policy, "x", 8080, "192.168.1.9")
    assert not permits(policy, "x", 443, "192.168.1.9")
    assert permits(policy, "x", 6379, "fd00::7")
    assert not permits(policy, "x", 443, "::ffff:10.2.3.4")
    assert policy.permits_port("x", 8080)


def test_a_name_is_allowed_wherever_it_points_and_below_it_only_with_a_dot() -> None:
    policy = FetchPolicy(allow=["files.internal", ".corp.example:8443"])
    assert permits(policy, "files.internal", 443, "10.0.0.1")
    assert not permits(policy, "x.files.internal", 443, "10.0.0.1")
    assert not permits(policy, "notfiles.internal", 443, "10.0.0.1")
    assert permits(policy, "a.corp.example", 8443, "10.0.0.1")
    assert not permits(policy, "acorp.example", 8443, "10.0.0.1")
    assert not permits(policy, "other.example", 8443, "10.0.0.1")


def test_the_entry_that_permits_a_connection_is_told() -> None:
    policy = FetchPolicy(allow=["10.0.0.0/8", "Files.internal:8080"])
    local, public = ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("1.1.1.1")
    assert policy.permitted_by("x", 443, local) == "10.0.0.0/8"
    assert policy.permitted_by("files.internal", 8080, local) == "files.internal:8080"
    assert policy.permitted_by("x", 443, public) == ""
    assert policy.permitted_by("x", 22, public) is None


def test_a_bare_address_of_the_sixth_version_needs_no_brackets() -> None:
    assert permits(FetchPolicy(allow=["::1"]), "x", 80, "::1")
    assert permits(FetchPolicy(allow=["fd00::/8"]), "x", 80, "fd00::1")


@pytest.mark.parametrize(
    "text", ["", "http://x", "a b", "10.0.0.0/99", "x:0", "x:70000", "x:y", "[::1", "*", "a/b"]
)
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        FetchPolicy(allow=[text])
    assert caught.value.code == "allow_invalid"
