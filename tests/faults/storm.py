"""A storm: clients put small objects while processes are killed and Redis is flushed.

What is remembered for each key is every content that a read may give: the last one acknowledged,
and those sent later whose answer never came.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from dataclasses import dataclass, field

import httpx
import redis

from services.cli.supervisor import EmbeddedStack
from shared.core.errors import BloxError

BUCKET = "storm"
TENANT = "storm"
_SCOPES = ["objects:read", "objects:write", "buckets:write", "tasks:read"]
#: Seconds that a client waits before it tries again what was refused or cut.
_AGAIN_SECONDS = 0.05


@dataclass(slots=True)
class Key:
    """What reads of one key may give: hashes, the acknowledged one first."""

    acknowledged: str | None = None
    possible: list[str] = field(default_factory=list)

    @property
    def readable(self) -> set[str]:
        """Return every content that a read may give."""
        return {*self.possible, *([self.acknowledged] if self.acknowledged else [])}


class Storm:
    """One run against a started stack."""

    def __init__(
        self,
        stack: EmbeddedStack,
        *,
        objects: int,
        clients: int,
        kill_every_seconds: float,
        flush_every_seconds: float,
        redis_url: str,
        seed: int = 7,
    ) -> None:
        self._stack = stack
        self._objects = objects
        self._clients = clients
        self._kill_every = kill_every_seconds
        self._flush_every = flush_every_seconds
        self._redis_url = redis_url
        self._seed = seed
        self._lock = threading.Lock()
        self._next = 0
        self._is_over = threading.Event()
        self.keys: dict[str, Key] = {}
        self.acknowledged = 0
        self.refused = 0
        self.kills: list[str] = []
        self.flushes = 0
        self.last_kill = 0.0
        self.surprises: list[str] = []
        self.headers = {"authorization": f"Bearer {self._make_tenant()}"}

    def run(self, limit_seconds: float) -> None:
        """Put everything while the storm rages; returns when all is acknowledged, or time is up."""
        putters = [
            threading.Thread(target=self._put_all, args=(number, time.monotonic() + limit_seconds))
            for number in range(self._clients)
        ]
        breakers = [
            threading.Thread(target=self._kill_in_turn),
            threading.Thread(target=self._flush_redis),
        ]
        for thread in [*putters, *breakers]:
            thread.start()
        for thread in putters:
            thread.join()
        self._is_over.set()
        for thread in breakers:
            thread.join()

    def wrong_reads(self) -> list[str]:
        """Read every acknowledged key; returns what came back wrong."""
        wrong: list[str] = []
        with httpx.Client(base_url=self._stack.api_url, timeout=30.0) as client:
            for name, key in self.keys.items():
                if key.acknowledged is None:
                    continue
                answer = client.get(self._path(name), headers=self.headers)
                digest = hashlib.sha256(answer.content).hexdigest()
                if answer.status_code != 200 or digest not in key.readable:
                    wrong.append(f"{name}: {answer.status_code}, {digest}, not {key.readable}")
        return wrong

    def _make_tenant(self) -> str:
        admin = {"authorization": f"Bearer {self._stack.admin_key}"}
        with httpx.Client(base_url=f"{self._stack.api_url}/v1", timeout=30.0) as client:
            answer = client.post("/tenants", json={"id": TENANT}, headers=admin)
            answer.raise_for_status()
            order = {"scopes": _SCOPES}
            answer = client.post(f"/tenants/{TENANT}/keys", json=order, headers=admin)
            secret = str(answer.raise_for_status().json()["secret"])
            channels = sorted(self._stack.settings.channels)
            answer = client.put(
                f"/buckets/{BUCKET}",
                json={"channels": channels},
                headers={"authorization": f"Bearer {secret}"},
            )
            answer.raise_for_status()
        return secret

    @staticmethod
    def _path(name: str) -> str:
        return f"/v1/buckets/{BUCKET}/objects/{name}"

    def _put_all(self, number: int, until: float) -> None:
        dice = random.Random(self._seed * 1000 + number)
        client = httpx.Client(base_url=self._stack.api_url, timeout=30.0)
        mine: list[str] = []
        while (index := self._take()) is not None:
            # One in ten overwrites a name of this client's own, so that the order is known.
            name = dice.choice(mine) if mine and dice.random() < 0.1 else f"object-{index:06d}"
            if name not in self.keys:
                mine.append(name)
            # One in twenty is a content that is there already.
            size = 16 if dice.random() < 0.05 else dice.randrange(1, 2000)
            body = bytes([size]) * 16 if size == 16 else os.urandom(size)
            if not self._put(client, name, body, until):
                break
        client.close()

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= self._objects:
                return None
            self._next += 1
            return self._next

    def _put(self, client: httpx.Client, name: str, body: bytes, until: float) -> bool:
        """Put until it is acknowledged; False when time is up."""
        key = self.keys.setdefault(name, Key())
        digest = hashlib.sha256(body).hexdigest()
        while time.monotonic() < until:
            key.possible.append(digest)
            try:
                answer = client.put(self._path(name), content=body, headers=self.headers)
            except httpx.HTTPError:
                self._again()
                continue
            if answer.status_code in (200, 201, 202):
                key.acknowledged, key.possible = digest, []
                with self._lock:
                    self.acknowledged += 1
                return True
            if answer.status_code not in (429, 503, 507):
                self.surprises.append(f"PUT {name}: {answer.status_code} {answer.text[:200]}")
            self._again()
        return False

    def _again(self) -> None:
        with self._lock:
            self.refused += 1
        self._is_over.wait(_AGAIN_SECONDS)

    def _kill_in_turn(self) -> None:
        turn = 0
        while not self._is_over.wait(self._kill_every):
            names = [name for name in self._stack.names if name != "redis"]
            name = names[turn % len(names)]
            turn += 1
            try:
                self._stack.kill(name)
            except BloxError:
                # It has not come back since its last turn.
                continue
            self.kills.append(name)
            self.last_kill = time.monotonic()

    def _flush_redis(self) -> None:
        client = redis.Redis.from_url(self._redis_url, socket_timeout=2.0)
        while not self._is_over.wait(self._flush_every):
            client.flushall()
            self.flushes += 1
        client.close()
