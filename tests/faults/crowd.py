"""A crowd: many clients that put, copy, move, hold and delete few contents under few names.

Everybody writes everywhere, so that contents are born, shared, condemned and revived all the time.
Each client also has one name of its own, of which it knows what a read may give.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx

from services.cli.supervisor import EmbeddedStack
from shared.core.errors import BloxError

BUCKETS = ("left", "right")
TENANT = "crowd"
_SCOPES = [
    *("objects:read", "objects:write", "buckets:write", "tasks:read"),
    *("holds:read", "holds:write"),
]
#: Answers that a race with the others, or a process that has just died, explains.
_EXPLAINED = {404, 409, 412, 429, 503}
_WRITTEN = {200, 201, 202, 204}


class Crowd:
    """One run against a started stack. `surprises` are answers that nothing explains."""

    def __init__(
        self,
        stack: EmbeddedStack,
        *,
        clients: int = 50,
        contents: int = 20,
        names: int = 20,
        kill_every_seconds: float,
        seed: int = 11,
    ) -> None:
        self._stack = stack
        self._clients = clients
        self._kill_every = kill_every_seconds
        self._seed = seed
        dice = random.Random(seed)
        self.contents = [
            dice.randbytes(dice.choice((0, 17, 300, 5000, 40_000)) + number)
            for number in range(contents)
        ]
        self.digests = [hashlib.sha256(content).hexdigest() for content in self.contents]
        self.names = [f"name-{number:02d}" for number in range(names)]
        self.done: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.kills: list[str] = []
        self.last_kill = 0.0
        self._is_over = threading.Event()
        self.headers = {"authorization": f"Bearer {self._make_tenant()}"}
        #: What a read of each client's own name may give: digests, or None for nothing.
        self.own: dict[str, set[str | None]] = {}

    def run(self, seconds: float) -> None:
        """Let everybody act for so long."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=_Client(self, number).run, args=(until,))
            for number in range(self._clients)
        ]
        killer = threading.Thread(target=self._kill_in_turn)
        for thread in [*threads, killer]:
            thread.start()
        for thread in threads:
            thread.join()
        self._is_over.set()
        killer.join()

    def note(self, action: str, answer: httpx.Response, *, explained: set[int]) -> bool:
        """Count an answer; tells whether the write was carried out."""
        self.done[f"{action} {answer.status_code}"] += 1
        if answer.status_code not in _WRITTEN | explained:
            self.surprises.append(f"{action}: {answer.status_code} {answer.text[:300]}")
        return answer.status_code in _WRITTEN

    def wrong_reads(self) -> list[str]:
        """Read every name; returns what came back wrong."""
        wrong: list[str] = []
        with httpx.Client(base_url=self._stack.api_url, timeout=30.0) as client:
            for bucket in BUCKETS:
                for name in [*self.names, *self.own]:
                    answer = client.get(path(bucket, name), headers=self.headers)
                    found = digest_of(answer)
                    wanted = self.own.get(name) if bucket == BUCKETS[0] else None
                    if answer.status_code not in (200, 404) or (
                        found is not None and found not in self.digests
                    ):
                        wrong.append(f"{bucket}/{name}: {answer.status_code} {found}")
                    elif wanted is not None and found not in wanted:
                        wrong.append(f"{name}: {found}, not one of {wanted}")
        return wrong

    def delete_all(self) -> None:
        """Release every hold, then delete everything, by one prefix per bucket."""
        with httpx.Client(
            base_url=self._stack.api_url, timeout=30.0, headers=self.headers
        ) as client:
            while holds := client.get("/v1/holds").raise_for_status().json()["items"]:
                for hold in holds:
                    client.delete(f"/v1/holds/{hold['id']}").raise_for_status()
            for bucket in BUCKETS:
                answer = client.post(f"/v1/buckets/{bucket}/removals", json={"prefix": ""})
                answer.raise_for_status()

    def _make_tenant(self) -> str:
        admin = {"authorization": f"Bearer {self._stack.admin_key}"}
        with httpx.Client(base_url=f"{self._stack.api_url}/v1", timeout=30.0) as client:
            client.post("/tenants", json={"id": TENANT}, headers=admin).raise_for_status()
            order = {"scopes": _SCOPES}
            answer = client.post(f"/tenants/{TENANT}/keys", json=order, headers=admin)
            secret = str(answer.raise_for_status().json()["secret"])
            headers = {"authorization": f"Bearer {secret}"}
            # One channel each: a copy across may have to bring the bytes first.
            channels = sorted(self._stack.settings.channels)
            for bucket, channel in zip(BUCKETS, channels, strict=True):
                spec = {"channels": [channel]}
                client.put(f"/buckets/{bucket}", json=spec, headers=headers).raise_for_status()
        return secret

    def _kill_in_turn(self) -> None:
        turn = 0
        # The API once in a while only: as long as it is away nobody does anything.
        workers = sorted(set(self._stack.names) - {"redis", "api"})
        names = [*workers, *workers, "api"]
        while not self._is_over.wait(self._kill_every):
            try:
                self._stack.kill(names[turn % len(names)])
            except BloxError:
                pass  # It has not come back since its last turn.
            else:
                self.kills.append(names[turn % len(names)])
                self.last_kill = time.monotonic()
            turn += 1


class _Client:
    """One of the crowd, with a connection of its own."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._dice = random.Random(crowd._seed * 1000 + number)
        self._own = f"own-{number:02d}"
        self._http = httpx.Client(
            base_url=crowd._stack.api_url, timeout=30.0, headers=crowd.headers
        )
        self._holds: list[int] = []

    def run(self, until: float) -> None:
        """Act until time is up."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (28, self._put),
            (8, self._put_in_parts),
            (16, self._instant),
            (16, lambda: self._copy("copy")),
            (8, lambda: self._copy("move")),
            (18, self._delete),
            (10, self._read),
            (6, self._write_own),
            (3, self._hold),
            (3, self._release),
            (3, self._put_for_a_second),
            (1, self._remove_some),
        ]
        weights = [weight for weight, _ in actions]
        while time.monotonic() < until:
            ((_, act),) = self._dice.choices(actions, weights)
            try:
                act()
            except httpx.HTTPError as error:
                self._crowd.done[f"cut {type(error).__name__}"] += 1
                self._crowd._is_over.wait(0.5 + self._dice.random())
        self._http.close()

    def _anywhere(self) -> tuple[str, str]:
        return self._dice.choice(BUCKETS), self._dice.choice(self._crowd.names)

    def _put(self) -> None:
        content = self._dice.choice(self._crowd.contents)
        answer = self._http.put(path(*self._anywhere()), content=content)
        self._crowd.note("put", answer, explained={429, 503, 507})

    def _put_in_parts(self) -> None:
        """Send a content in parts, and complete it, or give it up, or leave it to the sweep."""
        chosen = self._dice.randrange(len(self._crowd.contents))
        content, (bucket, name) = self._crowd.contents[chosen], self._anywhere()
        order = {
            "operation_id": f"{self._own}-{self._dice.randrange(10**9)}",
            "bucket": bucket,
            "key": name,
            "sha256": self._crowd.digests[chosen],
        }
        answer = self._http.post("/v1/uploads", json=order)
        if not self._crowd.note("begin", answer, explained={429, 503}):
            return
        upload = f"/v1/uploads/{answer.json()['id']}"
        cut = max(1, -(-len(content) // 3))
        pieces = [content[at : at + cut] for at in range(0, max(1, len(content)), cut)]
        for number, piece in self._dice.sample(list(enumerate(pieces, 1)), len(pieces)):
            answer = self._http.put(f"{upload}/parts/{number}", content=piece)
            if not self._crowd.note("part", answer, explained={429, 503, 507}):
                return
        if self._dice.random() < 0.7:
            answer = self._http.post(f"{upload}:complete")
            self._crowd.note("complete", answer, explained={429, 503})
        if self._dice.random() < 0.3:
            answer = self._http.delete(upload)
            self._crowd.note("give up", answer, explained={409, 503})

    def _put_for_a_second(self) -> None:
        content = self._dice.choice(self._crowd.contents)
        headers = {"x-blox-expires-in": "1"}
        answer = self._http.put(path(*self._anywhere()), content=content, headers=headers)
        self._crowd.note("put", answer, explained={429, 503, 507})

    def _remove_some(self) -> None:
        """Delete half of the names that everybody writes."""
        bucket, name = self._anywhere()
        answer = self._http.post(f"/v1/buckets/{bucket}/removals", json={"prefix": name[:-1]})
        self._crowd.note("remove", answer, explained={429, 503})

    def _instant(self) -> None:
        chosen = self._dice.randrange(len(self._crowd.contents))
        bucket, name = self._anywhere()
        order = {
            "key": name,
            "sha256": self._crowd.digests[chosen],
            "size": len(self._crowd.contents[chosen]),
        }
        answer = self._http.post(f"/v1/buckets/{bucket}/instant-uploads", json=order)
        self._crowd.note("instant", answer, explained={404, 503})

    def _copy(self, action: str) -> None:
        source, (bucket, name) = self._anywhere(), self._anywhere()
        order = {"bucket": bucket, "key": name}
        answer = self._http.post(f"{path(*source)}:{action}", json=order)
        if answer.status_code == 400:
            assert answer.json()["code"] == "same_key", answer.text
            return
        self._crowd.note(action, answer, explained={404, 409, 503})

    def _delete(self) -> None:
        answer = self._http.delete(path(*self._anywhere()))
        self._crowd.note("delete", answer, explained={409, 503})

    def _read(self) -> None:
        bucket, name = self._anywhere()
        answer = self._http.get(path(bucket, name))
        self._crowd.note("get", answer, explained={404, 503})
        found = digest_of(answer)
        if found is not None and (
            found not in self._crowd.digests or found != answer.headers["x-blox-sha256"]
        ):
            self._crowd.surprises.append(f"get {bucket}/{name}: {found}")

    def _write_own(self) -> None:
        """Write the own name, or delete it, and read what is there."""
        possible = self._crowd.own.setdefault(self._own, {None})
        chosen = self._dice.randrange(len(self._crowd.contents) + 4)
        is_put = chosen < len(self._crowd.contents)
        outcome = self._crowd.digests[chosen] if is_put else None
        possible.add(outcome)
        address = path(BUCKETS[0], self._own)
        if is_put:
            answer = self._http.put(address, content=self._crowd.contents[chosen])
        else:
            answer = self._http.delete(address)
        if self._crowd.note("own", answer, explained={429, 503, 507}):
            possible.clear()
            possible.add(outcome)
        answer = self._http.get(address)
        if answer.status_code not in (200, 404):
            return
        if digest_of(answer) not in possible:
            self._crowd.surprises.append(f"{self._own}: {digest_of(answer)}, not {possible}")

    def _hold(self) -> None:
        bucket, name = self._anywhere()
        order = {"key": name, "reason": "it may be needed"}
        answer = self._http.post(f"/v1/buckets/{bucket}/holds", json=order)
        if self._crowd.note("hold", answer, explained={404, 409, 503}):
            self._holds.append(answer.json()["id"])

    def _release(self) -> None:
        if self._holds:
            answer = self._http.delete(f"/v1/holds/{self._holds[-1]}")
            if self._crowd.note("release", answer, explained={503}):
                self._holds.pop()


def path(bucket: str, name: str) -> str:
    """Return the address of an object."""
    return f"/v1/buckets/{bucket}/objects/{name}"


def digest_of(answer: httpx.Response) -> str | None:
    """Return the hash of what came, None when nothing did."""
    return hashlib.sha256(answer.content).hexdigest() if answer.status_code == 200 else None
