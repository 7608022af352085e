"""Buckets and channels: their rules, their secrets, and the copy that every process keeps."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest
import sqlalchemy as sa

from shared.catalog.accounts import create_key, list_keys, list_tenants, revoke_key
from shared.catalog.buckets import (
    BucketSpec,
    delete_bucket,
    get_bucket,
    list_buckets,
    put_bucket,
)
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channels import (
    ChannelInput,
    delete_channel,
    list_channels,
    load_channels,
    put_channel,
    read_revision,
    set_enabled,
)
from shared.catalog.models import Bucket, ChannelRecord, Version
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.secret_box import SecretBox
from shared.core.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PermanentError,
    UnavailableError,
)
from tests.support.catalogue import TENANT, World, together

SPEC = BucketSpec(channels=["a", "b"])


def put(world: World, name: str = "photos", spec: BucketSpec = SPEC) -> bool:
    return world.run(lambda s: put_bucket(s, TENANT, name, spec).created)


def test_put_bucket_again_replaces_its_rules(world: World, bucket: int) -> None:
    policy = ReviewPolicy(fail_mode="human")
    assert not put(world, spec=BucketSpec(channels=["b"], review_policy=policy))
    row = world.get(Bucket, bucket)
    assert (row.channels, row.review_policy_version) == (["b"], policy.version)
    assert ReviewPolicy.model_validate(row.review_policy) == policy
    assert not put(world)
    assert world.get(Bucket, bucket).review_policy is None


def test_bucket_names_and_channels_are_checked(world: World, bucket: int) -> None:
    for name in ("", "ab", "Photos", "a..b", "-ab", "ab-", "x" * 64, "a b c", "ä-b-c"):
        with pytest.raises(InvalidError):
            put(world, name)
    for channels in (["nowhere"], ["a", "a"]):
        with pytest.raises(InvalidError):
            put(world, "other", BucketSpec(channels=channels))
    with pytest.raises(pydantic.ValidationError):
        BucketSpec(channels=[])
    with pytest.raises(ConflictError):
        put(world, spec=BucketSpec(channels=["a"], region="eu-west"))


def test_buckets_of_another_tenant_are_not_found(world: World, bucket: int) -> None:
    world.bucket(tenant="other")
    assert world.run(lambda s: get_bucket(s, TENANT, "photos")).id == bucket
    assert [b.id for b in world.run(lambda s: list_buckets(s, TENANT))] == [bucket]
    with pytest.raises(NotFoundError):
        world.run(lambda s: get_bucket(s, "third", "photos"))
    with pytest.raises(NotFoundError):
        world.run(lambda s: delete_bucket(s, "third", "photos"))


def test_one_of_many_makes_the_bucket(world: World, bucket: int) -> None:
    answers = together(*(lambda: put(world, "new") for _ in range(5)))
    assert answers.count(True) == 1
    assert all(isinstance(answer, bool | ConflictError) for answer in answers)
    assert len(world.all(Bucket)) == 2


def test_only_an_empty_bucket_goes(world: World, bucket: int) -> None:
    reviewed = world.bucket("reviewed", policy=ReviewPolicy())
    world.put(bucket, "k")
    world.put(reviewed, "k")
    for name in ("photos", "reviewed"):
        with pytest.raises(ConflictError) as caught:
            world.run(lambda s, name=name: delete_bucket(s, TENANT, name))
        assert caught.value.code == "bucket_not_empty"
    world.delete(bucket, "k")
    world.run(lambda s: delete_bucket(s, TENANT, "photos"))
    # A new bucket of the same name has nothing of the old one.
    again = world.bucket("photos")
    assert again != bucket
    with pytest.raises(NotFoundError):
        world.read(again, "k")


def test_listing_of_buckets_has_pages(world: World, bucket: int) -> None:
    for name in ("zebra", "aaa"):
        world.bucket(name)
    first = world.run(lambda s: list_buckets(s, TENANT, limit=2))
    assert [b.name for b in first] == ["aaa", "photos"]
    rest = world.run(lambda s: list_buckets(s, TENANT, after="photos"))
    assert [b.name for b in rest] == ["zebra"]


# -- channels ----------------------------------------------------------------------------------

S3 = ChannelInput(
    name="eu",
    kind="s3",
    settings={"endpoint": "http://127.0.0.1:1", "bucket": "b"},
    credentials={"access_key": "AK", "secret_key": "very secret"},
)


def put_one(world: World, channel: ChannelInput) -> None:
    world.run(lambda s: put_channel(s, channel, secrets=world.secrets))


def test_credentials_are_sealed_at_rest_and_kept_when_not_given(world: World) -> None:
    put_one(world, S3)
    row = world.get(ChannelRecord, "eu")
    assert "very secret" not in repr(vars(row)) + repr(S3)
    put_one(world, ChannelInput(name="eu", kind="s3", settings={**S3.settings, "region": "x"}))
    stored = world.run(lambda s: load_channels(s, world.secrets))["eu"]
    assert stored.spec.secrets == S3.credentials
    assert stored.spec.settings["region"] == "x"
    assert "very secret" not in repr(stored)
    other = SecretBox(SecretBox.generate_key())
    with pytest.raises(PermanentError) as caught:
        world.run(lambda s: load_channels(s, other))
    assert caught.value.code == "secret_unreadable"


def test_bad_channels_are_refused(world: World) -> None:
    for channel in (
        ChannelInput(name="A", kind="file", settings={"root": "/x"}),
        ChannelInput(name="a", kind="tape"),
        ChannelInput(name="a", kind="file"),
        ChannelInput(name="a", kind="file", settings={"root": "relative"}),
        ChannelInput(name="a", kind="file", settings={"root": "/x", "colour": 1}),
    ):
        with pytest.raises(InvalidError):
            put_one(world, channel)
    put_one(world, S3)
    with pytest.raises(ConflictError):
        put_one(world, ChannelInput(name="eu", kind="file", settings={"root": "/x"}))
    assert [row.name for row in world.run(list_channels)] == ["eu"]


def test_every_change_moves_the_revision(world: World) -> None:
    revisions = [world.run(read_revision)]
    put_one(world, S3)
    revisions.append(world.run(read_revision))
    world.run(lambda s: set_enabled(s, "eu", enabled=False))
    revisions.append(world.run(read_revision))
    world.run(lambda s: delete_channel(s, "eu"))
    revisions.append(world.run(read_revision))
    assert revisions == sorted(set(revisions))


def test_a_channel_in_use_stays(world: World, bucket: int) -> None:
    with pytest.raises(ConflictError):
        world.run(lambda s: delete_channel(s, "a"))
    with pytest.raises(NotFoundError):
        world.run(lambda s: delete_channel(s, "nowhere"))
    put_one(world, S3)
    put(world, spec=BucketSpec(channels=["eu"]))
    world.put_stored(bucket, "k")
    # No bucket names it any more, but bytes are on it.
    with pytest.raises(ConflictError):
        world.run(lambda s: delete_channel(s, "a"))
    world.run(lambda s: delete_channel(s, "b"))
    assert len(world.all(Version)) == 1


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_channel_catalogue_sees_changes_within_a_quarter_of_a_second(
    world: World, tmp_path: Path
) -> None:
    clock = Clock()
    book = ChannelCatalogue(world.engine, world.secrets, clock=clock)
    assert book.names() == []
    put_one(world, ChannelInput(name="a", kind="file", settings={"root": str(tmp_path)}))
    assert book.find("a") is None
    clock.now += 0.26
    found = book.find("a")
    assert found is not None
    opened, is_enabled = found
    assert (opened.name, is_enabled) == ("a", True)
    assert book.get("a") is opened.channel
    world.run(lambda s: set_enabled(s, "a", enabled=False))
    clock.now += 0.26
    assert not book.is_enabled("a")
    # What it holds stays readable, through the same channel object and breaker.
    assert book.open("a") is opened
    with pytest.raises(UnavailableError):
        book.get("nowhere")


def test_channel_catalogue_asks_rarely(world: World, tmp_path: Path) -> None:
    clock = Clock()
    put_one(world, ChannelInput(name="a", kind="file", settings={"root": str(tmp_path)}))
    book = ChannelCatalogue(world.engine, world.secrets, clock=clock)
    book.names()
    statements: list[str] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    for _ in range(100):
        book.find("a")
    assert statements == []
    clock.now += 0.3
    together(*(lambda: book.find("a") for _ in range(6)))
    assert sum("revisions" in text for text in statements) == 1
    clock.now += 31
    book.find("a")
    assert sum("channels.settings" in text for text in statements) == 1


def test_channel_catalogue_outlives_an_outage_of_the_database(world: World, tmp_path: Path) -> None:
    clock = Clock()
    put_one(world, ChannelInput(name="a", kind="file", settings={"root": str(tmp_path)}))
    events: list[str] = []
    book = ChannelCatalogue(world.engine, world.secrets, clock=clock, on_event=events.append)
    never_loaded = ChannelCatalogue(world.engine, world.secrets, clock=clock)
    opened = book.open("a")
    broken: list[bool] = [True]

    def refuse(*_args: object) -> None:
        if broken[0]:
            raise sa.exc.OperationalError("gone", None, ConnectionError())

    sa.event.listen(world.engine, "before_cursor_execute", refuse)
    for _ in range(9):
        clock.now += 30
        assert book.open("a") is opened
    assert (events[0], events.count("stale")) == ("load", 9)
    clock.now += 40
    with pytest.raises(UnavailableError):
        book.open("a")
    with pytest.raises(UnavailableError):
        never_loaded.open("a")
    broken[0] = False
    with pytest.raises(UnavailableError):
        book.open("a")  # cooling down
    clock.now += 2.1
    assert book.open("a").name == "a"


def test_channel_catalogue_does_not_use_a_copy_that_it_knows_to_be_outdated(
    world: World, tmp_path: Path
) -> None:
    clock = Clock()
    put_one(world, ChannelInput(name="a", kind="file", settings={"root": str(tmp_path)}))
    book = ChannelCatalogue(world.engine, world.secrets, clock=clock)
    book.open("a")
    world.run(lambda s: set_enabled(s, "a", enabled=False))

    def refuse_the_table(*args: object) -> None:
        if "channels.settings" in str(args[2]):
            raise sa.exc.OperationalError("gone", None, ConnectionError())

    sa.event.listen(world.engine, "before_cursor_execute", refuse_the_table)
    for seconds in (0.3, 0.3, 3.0):
        clock.now += seconds
        with pytest.raises(UnavailableError):
            book.is_enabled("a")
    sa.event.remove(world.engine, "before_cursor_execute", refuse_the_table)
    clock.now += 3.0
    assert not book.is_enabled("a")


def test_secret_box_seals_differently_each_time() -> None:
    box = SecretBox(SecretBox.generate_key())
    one, two = box.seal({"k": "v"}), box.seal({"k": "v"})
    assert one != two
    assert box.open(one) == box.open(two) == {"k": "v"}
    with pytest.raises(InvalidError):
        SecretBox("short")


def test_a_channel_that_goes_while_a_bucket_names_it_is_gone_or_stays(world: World) -> None:
    for turn in range(6):
        name = f"c{turn}"
        put_one(world, ChannelInput(name=name, kind="file", settings={"root": "/x"}))
        made, deleted = together(
            lambda name=name: put(world, f"bucket-{name}", BucketSpec(channels=[name])),
            lambda name=name: world.run(lambda s: delete_channel(s, name)),
        )
        assert isinstance(made, Exception) != isinstance(deleted, Exception), (made, deleted)


def test_names_that_the_columns_could_not_hold_name_nothing(world: World, bucket: int) -> None:
    for name in ("日本", "é", "a\0b", "x" * 300, "\ud800", "😀"):
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: get_bucket(s, TENANT, name))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: delete_bucket(s, TENANT, name))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: get_bucket(s, name, "photos"))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: set_enabled(s, name, enabled=True))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: delete_channel(s, name))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: create_key(s, name, scopes=["admin"]))
        with pytest.raises(NotFoundError):
            world.run(lambda s, name=name: revoke_key(s, name, 1))
        assert world.run(lambda s, name=name: list_keys(s, name)) == []
        assert world.run(lambda s, name=name: list_buckets(s, name)) == []
        world.run(lambda s, name=name: list_buckets(s, TENANT, after=name))
        world.run(lambda s, name=name: list_tenants(s, after=name))
