"""One page on its way: claimed once, pushed when it may be, marked where no worker was faster."""

from __future__ import annotations

import threading

from shared.core.clock import monotonic
from shared.outbox.backlog import Backlog
from shared.outbox.lanes import lower_lanes
from shared.outbox.messages import decode
from shared.outbox.pages import Page, Pages
from shared.outbox.signals import DispatchFailed
from shared.outbox.window import Place
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.filling import QUEUE, add, listed, read_lanes, states
from tests.support.outbox import Bench

PLACE = Place(QUEUE, "")


def _claimed_page(bench: Bench, pages: Pages, *, room: int = 10) -> Page:
    line = bench.context.db.line()
    backlog = Backlog(bench.context, PLACE)
    backlog.look(line)
    backlog.begin(room)
    page = pages.claim(backlog, room)
    line.close()
    assert page is not None
    return page


def test_a_push_without_an_answer_leaves_the_rows_and_is_tried_again(
    outbox_url: str, private_redis: RedisServer, namespace: str
) -> None:
    bench = Bench(outbox_url, private_redis.url, namespace=namespace)
    ids = add(bench, 3)
    pages = Pages(bench.context, bench.context.db.line())
    page = _claimed_page(bench, pages)
    private_redis.process.pause()
    assert pages.push(page) is None
    assert states(bench) == {"dispatching": 3}
    assert bench.seen(DispatchFailed) == [DispatchFailed(3, unknown=True)]

    private_redis.process.resume()
    eventually(lambda: bench.context.redis.ping())
    pages.push_again()
    pages.mark()

    assert states(bench) == {"dispatched": 3}
    fetched = [decode(body) for body in bench.context.scripts.fetch(QUEUE, 100)]
    # If the first push did arrive, its second entry has no body any more.
    assert sorted(message.kwargs["task_id"] for message in fetched) == ids
    bench.close()


def test_a_page_near_the_end_of_its_dispatch_lease_is_not_pushed(bench: Bench) -> None:
    add(bench, 2)
    pages = Pages(bench.context, bench.context.db.line())
    page = _claimed_page(bench, pages)
    page.expires_at = monotonic() + bench.context.settings.dispatch_margin_seconds - 0.1
    assert pages.push(page) is None
    assert listed(bench) == []
    assert states(bench) == {"dispatching": 2}


def test_a_worker_faster_than_the_mark_keeps_its_task(bench: Bench) -> None:
    first, second = add(bench, 2)
    pages = Pages(bench.context, bench.context.db.line())
    page = _claimed_page(bench, pages)
    bench.run(first)
    pages.push(page)
    pages.mark(older_than_seconds=60)
    assert bench.read(second).state == "dispatching"
    pages.mark()
    assert bench.read(first).state == "running"
    assert bench.read(second).state == "dispatched"


def test_two_fillers_at_once_take_each_row_once(
    outbox_url: str, redis_url: str, namespace: str
) -> None:
    benches = [
        Bench(outbox_url, redis_url, namespace=namespace, node=f"n{number}") for number in (1, 2)
    ]
    ids = add(benches[0], 200)
    found: list[int] = []
    barrier = threading.Barrier(2)

    def fill(bench: Bench) -> None:
        line = bench.context.db.line()
        pages, backlog = Pages(bench.context, line), Backlog(bench.context, PLACE)
        barrier.wait(10)
        for _ in range(100):
            backlog.look(line)
            if not backlog.has_rows:
                backlog.begin(10)
            page = pages.claim(backlog, 7)
            if page is not None:
                found.extend(page.ids)
                pages.push(page)
            elif states(bench).get("pending", 0) == 0:
                break
        line.close()

    threads = [threading.Thread(target=fill, args=(bench,)) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(found) == ids
    assert len(set(listed(benches[0]))) == len(listed(benches[0])) == 200
    for bench in benches:
        bench.close()


def test_a_lane_lowered_between_look_and_save_is_not_moved_past_its_row(bench: Bench) -> None:
    add(bench, 2, age_seconds=60)
    line = bench.context.db.line()
    backlog, pages = Backlog(bench.context, PLACE), Pages(bench.context, line)
    backlog.look(line)
    backlog.begin(10)
    assert pages.claim(backlog, 10) is not None
    (old,) = add(bench, age_seconds=3600)
    lower_lanes(bench.context.db, [((QUEUE, "", "", 1), bench.read(old).order_at)])

    backlog.save(line)

    (lane,) = read_lanes(bench).values()
    assert lane["watermark"] <= bench.read(old).order_at
    backlog.look(line)
    backlog.begin(10)
    page = pages.claim(backlog, 10)
    assert page is not None
    assert page.ids == [old]
    line.close()
