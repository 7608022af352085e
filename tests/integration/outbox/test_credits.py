"""Credits: at hand without a gap, never more than the window, none while rows wait."""

from __future__ import annotations

from shared.outbox.credits import Dealer, Wallet
from shared.outbox.filler import Filler
from shared.outbox.lanes import lower_lanes
from shared.outbox.window import Place
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.filling import QUEUE, add, clock, consume
from tests.support.outbox import Bench

PLACE = Place(QUEUE, "")


def _drain(wallet: Wallet, name: str = QUEUE, tenant: str = "") -> int:
    count = 0
    while wallet.take(name, tenant):
        count += 1
    return count


def test_half_of_what_is_free_is_dealt_over_the_producers(bench: Bench, other: Bench) -> None:
    first, second = Wallet(bench.context), Wallet(other.context)
    Dealer(bench.context).deal({PLACE: 21, Place("upload", "eu"): 4}, ["node-1", "node-2"])
    first.refresh()
    second.refresh()
    assert sorted([_drain(first), _drain(second)]) == [5, 5]
    assert [_drain(first, "upload.eu"), _drain(second, "upload.eu")] == [1, 1]
    assert first.take("review", "") is False


def test_what_does_not_divide_goes_round(bench: Bench) -> None:
    names = ["a", "b", "node-1"]
    dealer, wallet = Dealer(bench.context), Wallet(bench.context)
    got = []
    for _ in range(3):
        dealer._deals.clear()
        dealer.deal({PLACE: 2}, names)
        wallet.refresh()
        got.append(_drain(wallet))
    assert sorted(got) == [0, 0, 1]


def test_a_deal_replaces_what_is_held(bench: Bench) -> None:
    wallet, dealer = Wallet(bench.context), Dealer(bench.context)
    dealer.deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    dealer.deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    assert _drain(wallet) == 10


def test_credits_dealt_and_outstanding_never_exceed_the_free_window(bench: Bench) -> None:
    dealer = Dealer(bench.context)
    for _ in range(10):
        dealer.deal({PLACE: 21}, ["node-1"])
        assert dealer.outstanding(PLACE) <= 21


def test_credits_lapse_at_both_sides(outbox_url: str, redis_url: str, namespace: str) -> None:
    bench = Bench(
        outbox_url, redis_url, namespace=namespace, credit_seconds=0.1, credit_lapse_seconds=0.3
    )
    dealer, read, unread = Dealer(bench.context), Wallet(bench.context), Wallet(bench.context)
    dealer.deal({PLACE: 20}, ["node-1"])
    read.refresh()
    assert dealer.outstanding(PLACE) == 10
    eventually(lambda: dealer.outstanding(PLACE) == 0)
    assert _drain(read) == 0
    unread.refresh()
    assert _drain(unread) == 0
    bench.close()


def test_the_next_dealer_knows_what_the_last_one_dealt(bench: Bench, other: Bench) -> None:
    Dealer(bench.context).deal({PLACE: 20}, ["node-1"])
    heir = Dealer(other.context)
    heir.inherit(PLACE)
    assert heir.outstanding(PLACE) == 10


def test_a_tenant_with_a_row_waiting_uses_none(bench: Bench) -> None:
    wallet = Wallet(bench.context)
    Dealer(bench.context).deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    wallet.mark_backlog(QUEUE, "acme")
    assert wallet.take(QUEUE, "acme") is False
    assert wallet.take(QUEUE, "zoo") is True


def test_a_full_window_takes_back_what_is_not_used(bench: Bench) -> None:
    dealer, wallet = Dealer(bench.context), Wallet(bench.context)
    dealer.deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    dealer.deal({PLACE: 0}, ["node-1"])
    wallet.refresh()
    assert _drain(wallet) == 0


def test_without_redis_what_is_held_stays(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    bench = Bench(outbox_url, private_redis.url, namespace=namespace)
    wallet = Wallet(bench.context)
    Dealer(bench.context).deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    private_redis.stop()
    wallet.refresh()
    assert _drain(wallet) == 10
    bench.close()


def test_the_filler_deals_only_while_no_row_waits(bench: Bench) -> None:
    consume(bench, threads=2)
    wallet, filler = Wallet(bench.context), Filler(bench.context)
    ids = add(bench, 12)
    filler.run_once()
    wallet.refresh()
    assert _drain(wallet) == 0

    for task_id in ids:
        bench.set(task_id, state="completed")
    scripts = bench.context.scripts
    bench.context.redis.delete(scripts.list_key(QUEUE), scripts.messages_key(QUEUE))
    # Dealt each second: a window of eight, half of it.
    eventually(lambda: filler.run_once() or wallet.refresh() or wallet.take(QUEUE, ""))
    assert _drain(wallet) == 3
    filler.close()


def test_outstanding_credits_count_as_window(bench: Bench) -> None:
    consume(bench, threads=2)
    filler = Filler(bench.context)
    assert filler.run_once() == 0
    assert filler._dealer.outstanding(PLACE) == 4
    add(bench, 20)
    lower_lanes(bench.context.db, [((QUEUE, "", "", 1), clock(bench))])
    assert filler.run_once() == 4
    filler.close()


def test_a_deal_ends_the_wait_of_a_tenant_whose_rows_were_filled(bench: Bench) -> None:
    """Else a trickle of rows that each wait for a moment would never use a credit again."""
    wallet, dealer = Wallet(bench.context), Dealer(bench.context)
    wallet.mark_backlog(QUEUE, "acme")
    dealer.deal({PLACE: 20}, ["node-1"])
    wallet.refresh()
    assert wallet.take(QUEUE, "acme") is True
    wallet.mark_backlog(QUEUE, "acme")
    assert wallet.take(QUEUE, "acme") is False, "until the next deal"
