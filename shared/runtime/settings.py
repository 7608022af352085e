"""The settings of every process: one tree, read once at boot from `BLOX_*`, in one place.

`load_settings` is the only reader of the environment; tests and tools build `Settings(...)`, which
reads nothing. Groups are nested with two underscores: `BLOX_WORKER__THREADS=16`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from shared.core.errors import InvalidError
from shared.outbox.settings import OutboxSettings
from shared.storage.progress import Plan

PREFIX = "BLOX_"
DELIMITER = "__"
#: A folder whose files are settings: one file per variable, named like it. For mounted secrets.
SECRETS_DIR = "BLOX_SECRETS_DIR"

KIB, MIB, GIB = 1024, 1024**2, 1024**3


class SettingsError(InvalidError):
    """The settings cannot be used; the message names each fault in a sentence."""

    code = "settings"


class Group(pydantic.BaseModel):
    """A part of the tree: closed and read-only."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatabaseSettings(Group):
    """The connection pool. 0 for `pool_size` derives it from the threads."""

    pool_size: int = pydantic.Field(0, ge=0, le=1000)
    connect_timeout_seconds: float = pydantic.Field(5.0, gt=0)
    #: Above the statement limit of the sessions, so that the server's answer comes first.
    read_timeout_seconds: float = pydantic.Field(40.0, gt=0)
    pool_wait_seconds: float = pydantic.Field(10.0, gt=0)
    recycle_seconds: int = pydantic.Field(1800, gt=0)


class StagingSettings(Group):
    """Where bytes wait between the request and the upload task: a folder, or a bucket.

    Of kind `file`: `path`; `shared` says that every process that may run on another machine sees
    the same folder. Of kind `s3`: a bucket that is staging's alone, so that no common disk is
    needed; each process holds at most `memory_bytes` of bodies in parts of `part_bytes`, and
    `disk_bytes` in its folder for temporary files when half of that is taken.
    `max_age_seconds`: files that nothing names go to the trash when they are older, and from there
    for good after `trash_seconds`.
    """

    kind: Literal["file", "s3"] = "file"
    path: Path = Path(".blox/staging")
    shared: bool = False
    min_free_bytes: int = pydantic.Field(512 * MIB, ge=0)
    endpoint: str = ""
    bucket: str = ""
    region: str = ""
    prefix: str = ""
    access_key: str = ""
    secret_key: pydantic.SecretStr = pydantic.SecretStr("")
    part_bytes: int = pydantic.Field(5 * MIB, ge=5 * MIB, le=64 * MIB)
    memory_bytes: int = pydantic.Field(128 * MIB, ge=16 * MIB)
    disk_bytes: int = pydantic.Field(128 * MIB, ge=0)
    max_age_seconds: float = pydantic.Field(86400.0, ge=0)
    trash_seconds: float = pydantic.Field(7 * 86400.0, ge=0)


class WorkerSettings(Group):
    """A queue service: how many tasks it runs at a time."""

    threads: int = pydantic.Field(8, ge=1, le=256)


class ServicesSettings(Group):
    """Which queues this deployment serves. One that is off gets no tasks; its API answers 501."""

    upload: bool = True
    review: bool = True
    delete: bool = True
    replica: bool = True
    origin: bool = True
    backup: bool = True
    restore: bool = True
    notify: bool = True

    @property
    def switched_off(self) -> frozenset[str]:
        """Return the names of the queues that nobody serves."""
        return frozenset(name for name, is_on in self.model_dump().items() if not is_on)


class ApiSettings(Group):
    """The HTTP service. Every limit is checked before the bytes behind it are read.

    `upload_expiry_seconds`: an upload in parts that nothing came for is given up. Its parts have
    `min_part_bytes` (the last may be smaller) to `max_part_bytes`. `cors_origins`: origins, with
    commas between them, whose pages may call the API from a browser; `*` lets all.
    """

    host: str = "127.0.0.1"
    port: int = pydantic.Field(8080, ge=0, le=65535)
    threads: int = pydantic.Field(16, ge=1, le=256)
    max_object_bytes: int = pydantic.Field(5 * GIB, ge=0)
    max_json_bytes: int = pydantic.Field(1 * MIB, ge=1)
    max_key_bytes: int = pydantic.Field(1024, ge=1, le=1024)
    max_header_bytes: int = pydantic.Field(64 * KIB, ge=1 * KIB)
    #: Never more than the rows take.
    max_metadata_bytes: int = pydantic.Field(2 * KIB, ge=0, le=2 * KIB)
    max_backlog: int = pydantic.Field(1_000_000, ge=1)
    body_idle_seconds: float = pydantic.Field(60.0, gt=0)
    upload_expiry_seconds: float = pydantic.Field(7 * 86400.0, gt=0)
    min_part_bytes: int = pydantic.Field(64 * KIB, ge=1)
    max_part_bytes: int = pydantic.Field(5 * GIB, ge=1)
    #: Open uploads in parts of one tenant.
    max_open_uploads: int = pydantic.Field(10_000, ge=1)
    cors_origins: str = ""
    #: Requests of one process that wait for objects on their way from origins.
    max_origin_waiters: int = pydantic.Field(1000, ge=0)
    docs: bool = True


class FetchSettings(Group):
    """HTTP to addresses that tenants name: origins, webhooks. Public ones on `ports` are open.

    `allow` opens others as well: names, addresses, networks, each with an optional `:port` or `:*`
    (`["10.0.0.0/8", "files.internal:8080"]`). `ca_file` is trusted beside the public authorities.
    """

    ports: list[int] = [80, 443]
    allow: list[str] = []
    ca_file: Path | None = None
    connect_seconds: float = pydantic.Field(10.0, gt=0)
    idle_seconds: float = pydantic.Field(30.0, gt=0)


class ReviewSettings(Group):
    """Reviews. `clamd`: where ClamAV's daemon is, `unix:/path` or `tcp://host:port`; none if empty.

    `callback_url` is this API's address as reviewers elsewhere see it; they are told paths only
    when it is empty. The other three bound what a reviewer in its own process may take.
    """

    clamd: str = pydantic.Field("", pattern=r"^(unix:/.+|tcp://.+:\d{1,5})?$")
    callback_url: str = pydantic.Field("", pattern=r"^(https?://[!-~]+)?$")
    sandbox_seconds: float = pydantic.Field(120.0, gt=0)
    sandbox_cpu_seconds: int = pydantic.Field(60, ge=1)
    sandbox_memory_bytes: int = pydantic.Field(512 * MIB, ge=64 * MIB)


class OriginSettings(Group):
    """Pulls from origins.

    `max_running` bounds how many pulls of a bucket ask one host at a time, over all processes; 0 is
    no limit.
    """

    max_running: int = pydantic.Field(32, ge=0)


class SchedulerSettings(Group):
    """How often the scheduler's ticks run."""

    statistics_seconds: float = pydantic.Field(10.0, gt=0)
    cleanup_seconds: float = pydantic.Field(3600.0, gt=0)
    replica_seconds: float = pydantic.Field(600.0, gt=0)
    expiry_seconds: float = pydantic.Field(300.0, gt=0)
    drain_seconds: float = pydantic.Field(15.0, gt=0)
    backup_seconds: float = pydantic.Field(30.0, gt=0)
    #: Expired objects that one run looks at.
    expiry_objects: int = pydantic.Field(10_000, ge=1)


class SweepSettings(Group):
    """What a sweep over channels and staging may take away, and when.

    `tombstone_seconds`: a removed location is probed once more after the longest time on the wire.
    `notification_days`: events and what was sent of them are kept so long, 0: for ever.
    """

    min_age_seconds: float = pydantic.Field(3600.0, ge=0)
    tombstone_seconds: float = pydantic.Field(86400.0, ge=0)
    max_deletions: int = pydantic.Field(1000, ge=1)
    notification_days: float = pydantic.Field(30.0, ge=0, le=36500)
    dry_run: bool = False


class ReplicaSettings(Group):
    """What the job `replica_backup` does for copies on other channels in one turn.

    `backlog`: nothing is planned for a channel on which so many copies wait already. `versions`:
    how many are compared with one rule. `retry_seconds`: when a failed copy is tried again.
    `sample`: locations that are asked for on one channel; what was not there is asked for again
    after `again_seconds` at the earliest. The content of each is read back with the probability
    `deep_ratio`, and while `deep_bytes` last.
    """

    backlog: int = pydantic.Field(10_000, ge=1)
    versions: int = pydantic.Field(20_000, ge=1)
    retry_seconds: float = pydantic.Field(3600.0, ge=0)
    sample: int = pydantic.Field(1000, ge=0)
    again_seconds: float = pydantic.Field(60.0, ge=0)
    deep_ratio: float = pydantic.Field(0.01, ge=0, le=1)
    deep_bytes: int = pydantic.Field(256 * MIB, ge=0)


class HealthSettings(Group):
    """The port of /livez, /readyz and /metrics. 0 takes a free one, which the log names."""

    host: str = "127.0.0.1"
    port: int = pydantic.Field(9090, ge=0, le=65535)
    #: Live while the loops have turned within this; never a question to a server.
    loop_seconds: float = pydantic.Field(75.0, gt=0)
    #: Ready while database (and Redis) have answered within this.
    answer_seconds: float = pydantic.Field(10.0, gt=0)


class LogSettings(Group):
    """`auto` writes for people on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class ChannelSettings(Group):
    """A channel that `blox up` enters into the catalogue at start. The API makes others.

    0 leaves a number to the channel's kind.
    """

    kind: Literal["file", "s3"] = "file"
    root: Path | None = None
    endpoint: str = ""
    bucket: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: pydantic.SecretStr = pydantic.SecretStr("")
    bandwidth_bytes_per_second: int = pydantic.Field(0, ge=0)
    #: Executions that use it at a time, over all processes; 0 is no limit.
    max_running: int = pydantic.Field(0, ge=0)
    part_bytes: int = pydantic.Field(0, ge=0)
    parallel_parts: int = pydantic.Field(0, ge=0)
    breaker_failures: int = pydantic.Field(0, ge=0)
    breaker_open_seconds: float = pydantic.Field(0, ge=0)


_REGION = "[a-z][a-z0-9-]{0,31}"


class Settings(pydantic.BaseModel):
    """Everything that a process may be told. Sizes are bytes, times are seconds.

    `grace_seconds` is how long unreferenced content is kept. `secret_key` is a Fernet key: it
    encrypts the channels' credentials at rest. `regions` are those whose queues this process
    consumes, separated by commas, `consume_base` also the base queues, which have none.
    `shutdown_seconds` is the total of a shutdown.
    `stop_with_parent`: the process stops when its standard input ends, as it does when the process
    that started it dies.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    database_url: str = "sqlite:///.blox/blox.sqlite3"
    redis_url: str = "redis://127.0.0.1:6379/0"
    namespace: str = pydantic.Field("blox", pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    regions: str = pydantic.Field("", pattern=rf"^({_REGION}(,{_REGION})*)?$")
    consume_base: bool = True
    secret_key: pydantic.SecretStr = pydantic.SecretStr("")
    deployment: Literal["host", "kubernetes"] = "host"
    shutdown_seconds: float = pydantic.Field(60.0, gt=0)
    grace_seconds: float = pydantic.Field(3600.0, ge=0)
    failpoints: str = ""
    stop_with_parent: bool = False
    database: DatabaseSettings = DatabaseSettings()
    staging: StagingSettings = StagingSettings()
    outbox: OutboxSettings = OutboxSettings()
    worker: WorkerSettings = WorkerSettings()
    services: ServicesSettings = ServicesSettings()
    api: ApiSettings = pydantic.Field(ApiSettings(), validate_default=True)
    fetch: FetchSettings = FetchSettings()
    origin: OriginSettings = OriginSettings()
    review: ReviewSettings = ReviewSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    sweeps: SweepSettings = SweepSettings()
    replicas: ReplicaSettings = ReplicaSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()
    channels: dict[str, ChannelSettings] = {}

    @pydantic.field_validator("api")
    @classmethod
    def _parts_find_a_place(cls, api: ApiSettings, info: pydantic.ValidationInfo) -> ApiSettings:
        """Refuse what would leave the largest bodies "busy" for ever: one part is kept whole.

        Half of the memory is for parts that come, half for those that are sent from the disk.
        """
        staging = info.data.get("staging")
        if isinstance(staging, StagingSettings) and staging.kind == "s3":
            part_bytes = Plan.of(api.max_object_bytes, staging.part_bytes).part_bytes
            if part_bytes > max(staging.memory_bytes // 2, staging.disk_bytes):
                raise ValueError(
                    f"max_object_bytes needs parts of {part_bytes} bytes in a bucket, more than "
                    f"{PREFIX}STAGING{DELIMITER}DISK_BYTES and than half of "
                    f"{PREFIX}STAGING{DELIMITER}MEMORY_BYTES"
                )
        return api

    @property
    def consumed_regions(self) -> tuple[str, ...]:
        """Return the regions whose queues this process consumes; '' is the base."""
        named = tuple(dict.fromkeys(filter(None, self.regions.split(","))))
        return (("",) if self.consume_base else ()) + named

    @property
    def is_sqlite(self) -> bool:
        """Tell whether the database is a file."""
        return self.database_url.startswith("sqlite")


class _Loader(Settings, BaseSettings):
    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=PREFIX, env_nested_delimiter=DELIMITER
    )


class _Environment(EnvSettingsSource):
    """Variables from a mapping, files of a secrets folder beneath them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(_Loader)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}


def load_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Return the settings of this process from its environment, `overrides` above it.

    Raises SettingsError that names every variable with a fault; values of secrets are not shown.
    """
    environ = os.environ if environ is None else environ
    variables = {**_secret_files(environ), **_ours(environ)}
    if "KUBERNETES_SERVICE_HOST" in environ:
        variables.setdefault(f"{PREFIX}DEPLOYMENT", "kubernetes")
    try:
        values = _Environment(variables)()
        return Settings.model_validate({**values, **overrides})
    except pydantic.ValidationError as error:
        raise SettingsError("\n".join(_sentence(fault) for fault in error.errors())) from None
    except ValueError as error:
        # Of a value that cannot be taken apart the source names its group alone.
        faults = [
            f'{name}: is to be JSON, a list for example ["a", "b"].'
            for name, value in variables.items()
            if not _is_readable(name, value)
        ]
        raise SettingsError("\n".join(faults) or str(error)) from None


def _is_readable(name: str, value: str) -> bool:
    try:
        _Environment({name: value})()
    except ValueError:
        return False
    return True


def own_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables with our prefix, as they are set."""
    return _ours(os.environ if environ is None else environ)


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `variables` in the place of all that are ours."""
    own = _ours(os.environ)
    return {**{name: value for name, value in os.environ.items() if name not in own}, **variables}


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the names with our prefix that no setting has: most often a slip of the pen."""
    environ = os.environ if environ is None else environ
    known = set(Settings.model_fields)
    return sorted(
        name
        for name in _ours(environ)
        if name != SECRETS_DIR and name[len(PREFIX) :].lower().partition(DELIMITER)[0] not in known
    )


def _ours(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.upper().startswith(PREFIX)}


def _secret_files(environ: Mapping[str, str]) -> dict[str, str]:
    folder = environ.get(SECRETS_DIR)
    if not folder:
        return {}
    try:
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        return _ours({path.name: path.read_text().strip() for path in files})
    except OSError as error:
        raise SettingsError(f"{SECRETS_DIR} cannot be read: {error}") from error


def _sentence(fault: Any) -> str:
    variable = PREFIX + DELIMITER.join(str(part) for part in fault["loc"]).upper()
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{variable}: {message}."
