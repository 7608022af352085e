"""Seals channel credentials with the deployment's key: the database never holds them plain."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken

from shared.core.errors import InvalidError, PermanentError


class SecretBox:
    """Encrypts and authenticates small mappings under one key."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        try:
            self._fernet = Fernet(key)
        except ValueError as error:
            raise InvalidError(
                "the secret key is not a Fernet key: make one with `blox secret-key`",
                code="secret_key_invalid",
            ) from error

    def __repr__(self) -> str:
        return "SecretBox()"

    @staticmethod
    def generate_key() -> str:
        """Return a new key."""
        return Fernet.generate_key().decode()

    def derive(self, purpose: str) -> bytes:
        """Return a secret of 32 bytes for one purpose; it tells nothing of the key or of others."""
        return hmac.new(self._key, f"derive:{purpose}".encode(), hashlib.sha256).digest()

    def seal(self, secrets: Mapping[str, str]) -> str:
        """Return the sealed form of a mapping; each call gives another text."""
        return self._fernet.encrypt(json.dumps(dict(secrets), sort_keys=True).encode()).decode()

    def open(self, sealed: str) -> dict[str, str]:
        """Return what was sealed. Raises PermanentError (`secret_unreadable`) under another key."""
        try:
            plain = self._fernet.decrypt(sealed.encode())
        except InvalidToken as error:
            raise PermanentError(
                "the credentials were sealed with another secret key", code="secret_unreadable"
            ) from error
        opened: dict[str, str] = json.loads(plain)
        return opened
