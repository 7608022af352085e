"""Tenants, keys, and answers that are kept for requests that come twice."""

from __future__ import annotations

import datetime as dt
import hashlib

import pytest

from shared.catalog import idempotency
from shared.catalog.accounts import (
    SCOPES,
    authenticate,
    create_key,
    create_tenant,
    ensure_tenant,
    list_keys,
    list_tenants,
    revoke_key,
)
from shared.catalog.models import ApiKey, IdempotencyRecord, Tenant, utc_now
from shared.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from tests.support.catalogue import TENANT, World, together


@pytest.fixture
def tenant(world: World) -> str:
    world.run(lambda session: create_tenant(session, TENANT, name="Acme"))
    return TENANT


def test_a_key_authenticates_and_only_its_hash_is_kept(world: World, tenant: str) -> None:
    key = world.run(lambda s: create_key(s, tenant, scopes=["objects:read"], label="ci"))
    principal = world.run(lambda s: authenticate(s, key.secret))
    assert (principal.tenant_id, principal.key_id, principal.label) == (tenant, key.id, "ci")
    principal.require("objects:read")
    with pytest.raises(ForbiddenError):
        principal.require("objects:write")
    row = world.get(ApiKey, key.id)
    assert row.secret_sha256 == hashlib.sha256(key.secret.encode()).hexdigest()
    assert key.secret not in repr(key) + repr(vars(row))


def test_admin_includes_every_scope(world: World, tenant: str) -> None:
    key = world.run(lambda s: create_key(s, tenant, scopes=["admin"]))
    principal = world.run(lambda s: authenticate(s, key.secret))
    for scope in SCOPES:
        principal.require(scope)


def test_unknown_revoked_expired_keys_and_disabled_tenants_are_nobody(
    world: World, tenant: str
) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    key = world.run(lambda s: create_key(s, tenant, scopes=["admin"], expires_at=soon))
    world.run(lambda s: authenticate(s, key.secret))
    old = world.run(
        lambda s: create_key(s, tenant, scopes=["admin"], expires_at=dt.datetime(2020, 1, 1))
    )
    for secret in ("", "blox_nothing", key.secret + "x", old.secret, "\ud800"):
        with pytest.raises(UnauthorizedError):
            world.run(lambda s, secret=secret: authenticate(s, secret))
    world.run(lambda s: setattr(s.get_one(Tenant, tenant), "is_enabled", 0))
    with pytest.raises(UnauthorizedError):
        world.run(lambda s: authenticate(s, key.secret))
    world.run(lambda s: setattr(s.get_one(Tenant, tenant), "is_enabled", 1))
    world.run(lambda s: revoke_key(s, tenant, key.id))
    world.run(lambda s: revoke_key(s, tenant, key.id))
    with pytest.raises(UnauthorizedError) as caught:
        world.run(lambda s: authenticate(s, key.secret))
    assert caught.value.code == "key_revoked"


def test_a_key_of_another_tenant_is_not_found(world: World, tenant: str) -> None:
    world.run(lambda s: create_tenant(s, "other"))
    key = world.run(lambda s: create_key(s, "other", scopes=["admin"]))
    with pytest.raises(NotFoundError):
        world.run(lambda s: revoke_key(s, tenant, key.id))
    assert world.run(lambda s: list_keys(s, tenant)) == []


def test_scopes_and_tenants_are_checked(world: World, tenant: str) -> None:
    for scopes in ([], ["objects:eat"]):
        with pytest.raises(InvalidError):
            world.run(lambda s, scopes=scopes: create_key(s, tenant, scopes=scopes))
    with pytest.raises(NotFoundError):
        world.run(lambda s: create_key(s, "nobody", scopes=["admin"]))
    for bad in ("", "Acme", "a b", "-a", "x" * 65, "ä"):
        with pytest.raises(InvalidError):
            world.run(lambda s, bad=bad: create_tenant(s, bad))


def test_tenants_are_made_once(world: World, tenant: str) -> None:
    with pytest.raises(ConflictError):
        world.run(lambda s: create_tenant(s, tenant))
    made = together(*(lambda: world.run(lambda s: ensure_tenant(s, "new").id) for _ in range(4)))
    assert made == ["new"] * 4
    assert [row.id for row in world.run(lambda s: list_tenants(s, after="a", limit=1))] == [tenant]


PRINT = idempotency.fingerprint("POST", "/v1/x", "0" * 64)


def claim_and_keep(world: World, key: str, fingerprint: str = PRINT) -> object:
    def work(session):  # type: ignore[no-untyped-def]
        found = idempotency.claim(session, TENANT, key, fingerprint)
        if found is None:
            idempotency.keep(session, TENANT, key, status=202, answer={"id": 1})
        return found

    return world.run(work)


def test_the_second_request_gets_the_first_one_s_answer(world: World) -> None:
    assert claim_and_keep(world, "op-1") is None
    assert claim_and_keep(world, "op-1") == idempotency.StoredAnswer(202, {"id": 1})
    assert claim_and_keep(world, "Op-1") is None
    with pytest.raises(ConflictError) as caught:
        claim_and_keep(world, "op-1", idempotency.fingerprint("POST", "/v1/x", "1" * 64))
    assert caught.value.code == "idempotency_mismatch"


def test_requests_that_come_at_once_have_one_effect(world: World) -> None:
    answers = together(*(lambda: claim_and_keep(world, "op") for _ in range(6)))
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, idempotency.StoredAnswer) for answer in answers) == 5


def test_a_request_that_failed_leaves_no_answer(world: World) -> None:
    def fail(session):  # type: ignore[no-untyped-def]
        idempotency.claim(session, TENANT, "op", PRINT)
        raise InvalidError("no")

    with pytest.raises(InvalidError):
        world.run(fail)
    assert claim_and_keep(world, "op") is None


def test_expired_answers_are_forgotten(world: World) -> None:
    claim_and_keep(world, "old")
    claim_and_keep(world, "new")
    world.run(
        lambda s: setattr(s.get_one(IdempotencyRecord, (TENANT, "old")), "expires_at", utc_now(-1))
    )
    assert claim_and_keep(world, "old") is None
    world.run(
        lambda s: setattr(s.get_one(IdempotencyRecord, (TENANT, "old")), "expires_at", utc_now(-1))
    )
    assert world.run(idempotency.forget_expired) == 1
    assert [row.idempotency_key for row in world.all(IdempotencyRecord)] == ["new"]


def test_keys_that_do_not_fit_are_refused(world: World) -> None:
    for key in ("", "x" * 192, "a\nb"):
        with pytest.raises(InvalidError):
            claim_and_keep(world, key)
