"""Which addresses belong to the public internet. Pure; own tables, because Python's change.

Everything that is not plainly global is refused: also what only carries another address inside.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Networks inside IPv4 that are not of the public internet (IANA's registry, multicast, reserved).
_NOT_GLOBAL_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        # A cloud's agent behind an address that looks public.
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
#: The only part of IPv6 that is given out; mapped, translated and local addresses lie outside.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
#: Networks inside it that are not of the public internet: Teredo and other special ones,
#: documentation, 6to4.
_NOT_GLOBAL_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


def is_global(address: Address) -> bool:
    """Tell whether an address is one of the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_GLOBAL_V4)
    if address.scope_id is not None or address not in _GLOBAL_V6:
        return False
    return not any(address in network for network in _NOT_GLOBAL_V6)
