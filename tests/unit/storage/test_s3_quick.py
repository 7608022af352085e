"""What goes past boto3 asks for the same, at the same address, with the same signature."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.clock import Deadline
from shared.core.errors import InvalidError
from shared.storage.s3_client import S3Settings, make_client
from shared.storage.s3_quick import QuickCalls
from shared.storage.s3_transport import Transport

WHO = "AWS4-HMAC-SHA256 Credential=access/"
#: Nobody but boto3's own statistics reads them.
_OWN = {"amz-sdk-invocation-id", "amz-sdk-request", "expect", "user-agent"}
CALLS: dict[str, dict[str, Any]] = {
    "get_object": {"Range": "bytes=5-9"},
    "head_object": {"ChecksumMode": "ENABLED"},
    "put_object": {
        "Body": b"abc",
        "ContentMD5": "kAFQmDzST7DWlj99KOF/cg==",
        "IfNoneMatch": "*",
        "Metadata": {"blox-sha256": "00ff"},
    },
}


def sent(call: Any, transport: Transport, asked: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    """Return method, address and headers of a call that never leaves."""
    seen: list[Any] = []

    def exchange(method: str, url: str, headers: Any, body: Any = None) -> Any:
        seen.extend((method, url, headers))
        raise InvalidError("not sent")

    transport.exchange = exchange  # type: ignore[method-assign]
    with (
        pytest.raises(InvalidError),
        transport.until(Deadline(30), channel="s", action="test", key="k"),
    ):
        call(**asked)
    method, url, headers = seen
    plain = {}
    for name, value in headers.items():
        text = value.decode() if isinstance(value, bytes) else str(value)
        plain[name.lower()] = text
    return method, url, plain


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("path_style", [True, False])
@pytest.mark.parametrize(
    "endpoint", ["https://s3.example.test", "http://s3.example.test:9000", "http://[::1]:9000"]
)
@pytest.mark.parametrize("key", ["k", "a b/ü+~%41&=?#'(*)!:@,;$"])
def test_the_same_request_as_boto3s(
    call: str, path_style: bool, endpoint: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = S3Settings(
        endpoint=endpoint,
        bucket="bucket",
        access_key="access",
        secret_key="secret",
        region="eu-west-9",
        path_style=path_style,
    )
    client, transport = make_client(settings)
    quick = QuickCalls(client, transport, settings)
    asked = {"Bucket": "bucket", "Key": key, **CALLS[call]}
    for _ in range(3):
        ours = sent(getattr(quick, call), transport, asked)
        theirs = sent(getattr(client, call), transport, asked)
        if ours[2]["x-amz-date"] == theirs[2]["x-amz-date"]:
            break  # Else a second began between the two.
    assert ours[:2] == theirs[:2]
    assert ours[2].pop("host") in endpoint.replace("://", "://bucket.") + endpoint
    assert {k: v for k, v in ours[2].items() if k not in _OWN} == {
        k: v for k, v in theirs[2].items() if k not in _OWN
    }
    assert ours[2]["authorization"].startswith(WHO)
