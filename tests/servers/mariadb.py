"""A private MariaDB in a temporary directory, with its default durability."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pymysql

from tests.servers.ports import free_port
from tests.servers.process import Process, need_program, run

USER = "blox"
#: What a session's databases may grow to, with room to spare.
_MEMORY_BYTES = 3 * 1024**3
PASSWORD = "loopback-only"  # a private server that lives as long as the tests


class MariaDB:
    """The server; `restart`, `stop`, `kill` and `start` keep its data, port and address."""

    def __init__(
        self,
        directory: Path,
        *,
        buffer_pool_bytes: int = 128 * 1024 * 1024,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.socket = directory / "s.sock"
        # Started by root it would refuse to run without being told to.
        self._as_user = ["--user=root"] if os.geteuid() == 0 else []
        self._log = directory / "log"
        self.process = Process(
            "mariadbd",
            [
                need_program("mariadbd"),
                "--no-defaults",
                *self._as_user,
                f"--datadir={directory / 'data'}",
                # Not the common one: a server that starts removes what it takes for leftovers.
                f"--tmpdir={directory}",
                f"--socket={self.socket}",
                f"--pid-file={directory / 'pid'}",
                "--bind-address=127.0.0.1",
                f"--port={self.port}",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_unicode_ci",
                f"--innodb-buffer-pool-size={buffer_pool_bytes}",
                "--max-connections=500",
                "--skip-name-resolve",
                *options,
            ],
            log=self._log,
        )
        self._sequence = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Make the data directory and the account that `url` names, and start it."""
        run(
            [
                need_program("mariadb-install-db"),
                "--no-defaults",
                *self._as_user,
                f"--datadir={self.directory / 'data'}",
                f"--tmpdir={self.directory}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            log=self._log,
        )
        self.start()
        with self._connect(user="root", password="") as connection, connection.cursor() as cursor:
            for host in ("127.0.0.1", "localhost"):
                account = f"'{USER}'@'{host}'"
                cursor.execute(f"CREATE USER {account} IDENTIFIED BY '{PASSWORD}'")
                cursor.execute(f"GRANT ALL ON *.* TO {account} WITH GRANT OPTION")

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process.start()
        self.process.wait_ready(self._answers)

    def stop(self) -> None:
        """Stop it in the ordered way."""
        self.process.stop()

    def kill(self) -> None:
        """End it with SIGKILL; `start` recovers what was committed."""
        self.process.kill()

    def restart(self) -> None:
        """Stop and start it."""
        self.stop()
        self.start()

    def url(self, database: str) -> str:
        """Return the SQLAlchemy address of a database."""
        return f"mysql+pymysql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database and return its name."""
        if name is None:
            with self._lock:
                self._sequence += 1
                name = f"test_{os.getpid()}_{self._sequence}"
        self.execute(f"CREATE DATABASE `{name}`")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database; sessions still open on it are killed first, so that it cannot wait."""
        rows = self.execute("SELECT id FROM information_schema.processlist WHERE db = %s", name)
        for row in rows:
            with contextlib.suppress(pymysql.MySQLError):  # it may have ended by itself
                self.execute(f"KILL CONNECTION {int(str(row[0]))}")
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        with self._connect(user=USER, password=PASSWORD) as connection:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                rows = list(cursor.fetchall())
            connection.commit()
        return rows

    def _connect(self, *, user: str, password: str) -> contextlib.closing[pymysql.Connection]:
        return contextlib.closing(
            pymysql.connect(
                unix_socket=str(self.socket),
                user=user,
                password=password,
                charset="utf8mb4",
                connect_timeout=5,
                read_timeout=60,
                write_timeout=60,
            )
        )

    def _answers(self) -> bool:
        try:
            with self._connect(user="root", password=""):
                return True
        except pymysql.OperationalError as error:
            return bool(error.args[0] == 1045)  # it answers, though not to root


@contextlib.contextmanager
def running_mariadb(
    *,
    buffer_pool_bytes: int = 128 * 1024 * 1024,
    options: Sequence[str] = (),
    in_memory: bool = False,
) -> Iterator[MariaDB]:
    """Run a server for the length of the block and remove its data afterwards.

    `in_memory` puts the data directory on a memory file system where there is room: the server
    syncs as ever and its data outlives a SIGKILL, but tables are made five times faster.
    """
    parent = _memory_folder() if in_memory else None
    directory = Path(tempfile.mkdtemp(prefix="blox-mariadb-", dir=parent))
    try:
        server = MariaDB(directory, buffer_pool_bytes=buffer_pool_bytes, options=options)
        try:
            server.install()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _memory_folder() -> Path | None:
    folder = Path("/dev/shm")
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return None
    return folder if shutil.disk_usage(folder).free >= _MEMORY_BYTES else None
