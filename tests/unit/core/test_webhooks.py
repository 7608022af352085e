"""Standard Webhooks signatures: what fits, what is too old, what is no message."""

from __future__ import annotations

import base64

import pytest

from shared.core.errors import InvalidError, UnauthorizedError
from shared.core.webhooks import check_secret, make_secret, sign, verify

#: The standard's own example.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, NOW = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_signature_is_that_of_the_standard() -> None:
    assert sign([SECRET], message_id=ID, timestamp=NOW, body=BODY) == {
        "webhook-id": ID,
        "webhook-timestamp": str(NOW),
        "webhook-signature": SIGNATURE,
    }


def test_own_message_is_verified_also_while_secrets_change() -> None:
    old, new = make_secret(), make_secret()
    signed = sign([old, new], message_id=ID, timestamp=NOW, body=BODY)
    for known in ([old], [new], [make_secret(), old]):
        assert verify(known, signed, BODY, now=NOW + 299) == ID


@pytest.mark.parametrize(
    ("change", "body", "later", "code"),
    [
        ({}, b"other", 0, "webhook_signature_invalid"),
        ({"webhook-id": "other"}, BODY, 0, "webhook_signature_invalid"),
        ({"webhook-timestamp": str(NOW + 1)}, BODY, 0, "webhook_signature_invalid"),
        ({"webhook-signature": ""}, BODY, 0, "webhook_signature_invalid"),
        (
            {"webhook-signature": SIGNATURE.replace("v1", "v2")},
            BODY,
            0,
            "webhook_signature_invalid",
        ),
        ({"webhook-signature": "v1,ü"}, BODY, 0, "webhook_signature_invalid"),
        ({}, BODY, 301, "webhook_timestamp_old"),
        ({}, BODY, -301, "webhook_timestamp_old"),
        ({"webhook-id": ""}, BODY, 0, "webhook_id_invalid"),
        ({"webhook-id": "x" * 129}, BODY, 0, "webhook_id_invalid"),
        ({"webhook-timestamp": "-1"}, BODY, 0, "webhook_timestamp_invalid"),
        ({"webhook-timestamp": "9" * 400}, BODY, 0, "webhook_timestamp_invalid"),
    ],
)
def test_anything_else_is_refused(
    change: dict[str, str], body: bytes, later: int, code: str
) -> None:
    signed = {**sign([SECRET], message_id=ID, timestamp=NOW, body=BODY), **change}
    with pytest.raises(UnauthorizedError) as caught:
        verify([SECRET], signed, body, now=NOW + later)
    assert caught.value.code == code


def test_without_a_secret_nothing_is_verified() -> None:
    signed = sign([SECRET], message_id=ID, timestamp=NOW, body=BODY)
    with pytest.raises(UnauthorizedError):
        verify([], signed, BODY, now=NOW)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_!!",
        SECRET.removeprefix("whsec_"),
        "whsec_" + base64.b64encode(b"short").decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_secret_that_is_none(secret: str) -> None:
    with pytest.raises(InvalidError):
        check_secret(secret)
