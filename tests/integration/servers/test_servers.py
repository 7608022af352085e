"""The private servers do what the other tests rely on."""

from __future__ import annotations

import boto3
import pytest
import redis
import sqlalchemy as sa
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.servers.mariadb import MariaDB
from tests.servers.moto import S3Server
from tests.servers.process import Process, ServerError
from tests.servers.redis import RedisServer, running_redis
from tests.servers.rgw import CephRGW


def _client(server: S3Server, *, secret_key: str | None = None):
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=secret_key or server.secret_key,
        region_name=server.region,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def test_mariadb_keeps_committed_rows_over_kill_and_restart(private_mariadb: MariaDB) -> None:
    name = private_mariadb.create_database()
    private_mariadb.execute(f"CREATE TABLE {name}.t (a INT)")
    private_mariadb.execute(f"INSERT INTO {name}.t VALUES (1)")

    private_mariadb.kill()
    private_mariadb.start()
    assert private_mariadb.execute(f"SELECT a FROM {name}.t") == [(1,)]

    private_mariadb.restart()
    assert private_mariadb.execute(f"SELECT a FROM {name}.t") == [(1,)]


def test_mariadb_is_durable_and_speaks_utf8mb4(mariadb: MariaDB) -> None:
    settings = "@@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@character_set_server"
    assert mariadb.execute(f"SELECT {settings}") == [(1, 1, "utf8mb4")]


def test_database_url_is_empty_and_of_one_test_only(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    assert sa.inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE left_behind (a INT)"))
    engine.dispose()


@pytest.mark.databases("mariadb")
def test_dropping_a_database_does_not_wait_for_an_open_transaction(
    database_url: str, mariadb: MariaDB
) -> None:
    engine = sa.create_engine(database_url)
    name = engine.url.database
    assert name is not None
    mariadb.execute(f"CREATE TABLE {name}.t (a INT)")
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT * FROM t"))
        mariadb.drop_database(name)
        connection.invalidate()
    assert mariadb.execute("SHOW DATABASES LIKE %s", name) == []
    engine.dispose()


@pytest.mark.parametrize("variant", ["system", "wheel"])
def test_redis_comes_back_empty_on_the_same_port(variant: str) -> None:
    with running_redis(variant=variant) as server, server.client() as client:
        client.set("a", "1")
        before = client.info("server")
        server.stop()
        with pytest.raises(redis.ConnectionError):
            client.get("a")
        server.start()
        assert client.get("a") is None
        assert client.info("server")["run_id"] != before["run_id"]


def test_redis_from_the_wheel_is_the_oldest_supported() -> None:
    with running_redis(variant="wheel") as server, server.client() as client:
        assert client.info("server")["redis_version"].startswith("6.2.")


def test_redis_of_the_session_is_flushed_only_by_itself(
    redis_server: RedisServer, private_redis: RedisServer
) -> None:
    with redis_server.client() as kept, private_redis.client() as flushed:
        kept.set("kept", "1")
        flushed.set("gone", "1")
        private_redis.flush()
        assert flushed.get("gone") is None
        assert kept.get("kept") == "1"
        kept.delete("kept")


def test_rgw_is_a_real_s3(rgw: CephRGW, namespace: str) -> None:
    client = _client(rgw.server)
    client.create_bucket(Bucket=namespace)
    client.put_object(Bucket=namespace, Key="a", Body=b"bytes")
    assert client.get_object(Bucket=namespace, Key="a")["Body"].read() == b"bytes"
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        _client(rgw.server, secret_key="wrong").get_object(Bucket=namespace, Key="a")

    rgw.restart_gateway()
    assert client.get_object(Bucket=namespace, Key="a")["Body"].read() == b"bytes"


def test_moto_answers(moto: S3Server, namespace: str) -> None:
    client = _client(moto)
    client.create_bucket(Bucket=namespace)
    client.put_object(Bucket=namespace, Key="a", Body=b"bytes")
    assert client.get_object(Bucket=namespace, Key="a")["Body"].read() == b"bytes"


def test_a_process_that_dies_shows_the_end_of_its_log(tmp_path) -> None:
    process = Process("doomed", ["sh", "-c", "echo last words; exit 3"], log=tmp_path / "log")
    process.start()
    with pytest.raises(ServerError, match="ended with 3\nlast words"):
        process.wait_ready(lambda: False)
