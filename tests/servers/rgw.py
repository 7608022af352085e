"""A private Ceph RGW, a real S3: one monitor, one object store in memory, one gateway, no cluster.

Cephx stays on, since the gateway gets its configuration only through it. Deleted bytes are given
back within seconds, not hours: all of a run's objects share one small store.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.servers.moto import S3Server
from tests.servers.ports import free_range
from tests.servers.process import Process, need_program, run

ACCESS_KEY, SECRET_KEY = "test", "testtest"
#: Gateway, monitor, and the range from which the object store takes its own.
_PORTS = 42

_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind port min = {osd_first}
ms bind port max = {osd_last}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
run dir = {root}
admin socket = {root}/$name.$pid.asok
pid file = {root}/$name.pid
log file = {root}/$name.log
crash dir = {root}
keyring = {root}/keyring
[mon.a]
mon data = {root}/mon
[osd.0]
osd data = {root}/osd
keyring = {root}/osd/keyring
osd objectstore = memstore
memstore device bytes = 4294967296
[client.rgw]
rgw data = {root}/rgw
keyring = {root}/rgw/keyring
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 32
rgw gc obj min wait = 5
rgw gc processor period = 5
rgw gc processor max time = 5
"""


class CephRGW:
    """The three daemons. Their data lives in memory: stopping the object store loses it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_range(_PORTS)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.server = S3Server(self.endpoint, ACCESS_KEY, SECRET_KEY)
        self._fsid = str(uuid.uuid4())
        self._log = root / "setup.log"
        self._configuration = root / "ceph.conf"
        self.monitor = self._daemon("ceph-mon", "-i", "a")
        self.store = self._daemon("ceph-osd", "-i", "0")
        self.gateway = self._daemon("radosgw", "-n", "client.rgw")

    def start(self) -> None:
        """Lay out the directories, start the daemons in order and make the user."""
        for name in ("mon", "osd", "rgw"):
            (self.root / name).mkdir()
        mon_port = self.port + 1
        self._configuration.write_text(
            _CONFIGURATION.format(
                fsid=self._fsid,
                root=self.root,
                port=self.port,
                mon_port=mon_port,
                osd_first=mon_port + 1,
                osd_last=self.port + _PORTS - 1,
            )
        )
        self._start_monitor(mon_port)
        self._start_store()
        self._start_gateway()

    def stop(self) -> None:
        """Stop the daemons; the gateway first, since without a monitor it ignores SIGTERM."""
        for daemon in (self.gateway, self.store, self.monitor):
            daemon.stop(timeout_seconds=10.0)

    def restart_gateway(self) -> None:
        """Stop and start the S3 end alone; objects stay."""
        self.gateway.stop()
        self.gateway.start()
        self.gateway.wait_ready(self._answers, timeout_seconds=60.0)

    def _start_monitor(self, port: int) -> None:
        keyring, everything = str(self.root / "keyring"), ("--cap", "mon", "allow *")
        create = ("--create-keyring", keyring, "--gen-key")
        self._run("ceph-authtool", *create, "-n", "mon.", *everything)
        admin = ("--gen-key", "-n", "client.admin", *everything, "--cap", "osd", "allow *")
        self._run("ceph-authtool", keyring, *admin)
        address, monmap = f"[v2:127.0.0.1:{port}]", str(self.root / "monmap")
        self._run("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", address, monmap)
        files = ("--monmap", monmap, "--keyring", keyring)
        self._run("ceph-mon", *self._conf, "--mkfs", "-i", "a", *files)
        self.monitor.start()

    def _start_store(self) -> None:
        keyring, store_id = str(self.root / "osd" / "keyring"), str(uuid.uuid4())
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "osd.0")
        secret = self._run("ceph-authtool", keyring, "-n", "osd.0", "-p").strip()
        answer = json.dumps({"cephx_secret": secret})
        self._run("ceph", *self._conf, "osd", "new", store_id, "-i", "-", stdin=answer)
        self._run("ceph-osd", *self._conf, "-i", "0", "--mkfs", "--osd-uuid", store_id)
        self.store.start()
        self.store.wait_ready(lambda: "1 up" in self._run("ceph", *self._conf, "osd", "stat"))

    def _start_gateway(self) -> None:
        rights = ("mon", "allow *", "osd", "allow *")
        keyring = self._run("ceph", *self._conf, "auth", "get-or-create", "client.rgw", *rights)
        (self.root / "rgw" / "keyring").write_text(keyring)
        self.gateway.start()
        self.gateway.wait_ready(self._answers, timeout_seconds=90.0)
        keys = ("--access-key", ACCESS_KEY, "--secret", SECRET_KEY)
        user = ("user", "create", "--uid", "test", "--display-name", "test", *keys)
        self._run("radosgw-admin", *self._conf, "-n", "client.rgw", *user)

    @property
    def _conf(self) -> tuple[str, str]:
        return ("-c", str(self._configuration))

    def _daemon(self, program: str, *identity: str) -> Process:
        argv = [need_program(program), *self._conf, *identity, "-f"]
        return Process(program, argv, log=self.root / f"{program}.out")

    def _run(self, program: str, *arguments: str, stdin: str = "") -> str:
        return run([need_program(program), *arguments], log=self._log, stdin=stdin)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 200
        finally:
            connection.close()


@contextlib.contextmanager
def running_rgw() -> Iterator[CephRGW]:
    """Run the gateway for the length of the block; it takes about 13 seconds to come up."""
    root = Path(tempfile.mkdtemp(prefix="blox-rgw-"))
    gateway = CephRGW(root)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(root, ignore_errors=True)
