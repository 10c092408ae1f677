"""Logs of many pods over weeks: files that rotate, stewards that follow each other, a connection per pod."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User

from infra.cluster import attempts
from infra.cluster.kubernetes import followers_of
from infra.cluster.pod_logs import PodLogs
from infra.record import pod_logs
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.steward.seeing import followed, logs
from infra.steward.seeing.logs import Listener, LogShipper
from tests.rehearsal.aws_account import Account, until
from tests.rehearsal.steward.fake_kubelet import START_NS, Kubelet, PodLog
from tests.serving import serve

POD = "c-a1-gang-0-0-x"
SECOND = 10**9


def line(step: int) -> str:
    return json.dumps({"event": "step", "step": step, "loss": 0.5}) + "\n"


@pytest.fixture
def store(aws: Account, world: World) -> Iterator[CampaignStore]:
    s3 = aws.session.client("s3", endpoint_url=world.endpoint_url)
    s3.create_bucket(Bucket="state")
    yield (campaign_store := CampaignStore(s3, "state", "weeks", "steward"))
    for key in campaign_store.keys(""):
        s3.delete_object(Bucket="state", Key=key)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.02)


def shipper(kubelet: Kubelet, store: CampaignStore, listener: Listener, *pods: str) -> LogShipper:
    log_shipper = LogShipper(PodLogs(httpx2.Client(base_url="http://kubernetes", transport=kubelet)), store, listener)
    for pod in pods or (POD,):
        log_shipper.follow(pod)
    return log_shipper


def steps_heard() -> tuple[list[int], Listener]:
    steps: list[int] = []
    return steps, lambda pod, event: steps.append(event["step"])


def text(store: CampaignStore, pod: str = POD) -> str:
    return b"".join(store.get(key) or b"" for key in pod_logs.pieces(store, pod)).decode()


def kill(shipper: LogShipper, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SIGKILL leaves it: nothing more is read, nothing more is stored.

    A follower that ends marks its log as read to the end, which a round of shipping under way would then store.
    """
    for pod_log in shipper._pod_logs():
        with pod_log._lock:
            monkeypatch.setattr(pod_log, "due", lambda: False)
    shipper._stop.set()
    shipper._flusher.join()
    for follower in shipper._followers.values():
        follower.join()


def test_a_log_that_rotates_while_the_connection_is_lost_is_heard_whole_and_once(store: CampaignStore) -> None:
    """The first connection breaks after 1,000 steps, and a new one is given the newest file, of the next 900."""
    log = PodLog([(START_NS + step * SECOND // 7, line(step)) for step in range(1000)])

    def rotate(number: int, log: PodLog) -> None:
        if number == 1:
            # Its last line is still in the newest file, as where a kubelet rotates between two lines of one second.
            log.lines[:-1] = []
            log.lines += [(START_NS + step * SECOND // 7, line(step)) for step in range(1000, 1900)]
        else:
            log.phase = "Succeeded"

    kubelet = Kubelet({POD: log}, lambda number, log: 1000 if number == 1 else None, rotate)
    heard, listener = steps_heard()
    made = shipper(kubelet, store, listener)
    made.wait_for([POD], 20)
    made.close()
    assert heard == list(range(1900))
    assert text(store) == "".join(map(line, range(1900)))
    assert kubelet.asked[0] is None and kubelet.asked[1] is not None


def test_lines_of_one_moment_are_told_apart_by_their_number(store: CampaignStore) -> None:
    log = PodLog([(START_NS, line(step)) for step in range(6)])
    cuts = {1: 2, 2: 5}

    def end(number: int, log: PodLog) -> None:
        log.phase = "Succeeded" if number == 3 else "Running"

    heard, listener = steps_heard()
    made = shipper(Kubelet({POD: log}, lambda number, log: cuts.get(number), end), store, listener)
    made.wait_for([POD], 20)
    made.close()
    assert heard == list(range(6)) and text(store) == "".join(map(line, range(6)))


def test_a_line_is_one_line_whatever_characters_it_holds_and_is_no_kubelets_word(
    store: CampaignStore,
) -> None:
    odd = "\rstep 1\rstep 2\x0b\u2028 done\n"
    log = PodLog([(START_NS, odd), (START_NS + 1, "Traceback\n")], "Succeeded")
    kubelet = Kubelet({POD: log})
    made = shipper(kubelet, store, lambda *_: None)
    made.wait_for([POD], 20)
    assert made.tail(POD)[-1] == "Traceback"
    made.close()
    assert text(store) == odd + "Traceback\n"


def test_a_successor_goes_on_where_its_predecessor_was_killed_and_shortens_nothing(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after two pieces and with lines that it had only heard; meanwhile the stored part was rotated away."""
    monkeypatch.setattr(followed, "PIECE_BYTES", len(line(0)) * 10)
    log = PodLog([(START_NS + step * SECOND // 3, line(step)) for step in range(25)])
    first_heard, listener = steps_heard()
    first = shipper(Kubelet({POD: log}), store, listener)
    until(lambda: len(first_heard) == 25)
    kill(first, monkeypatch)
    stored = text(store)
    assert 10 <= stored.count("\n") < 25, "some is stored, some is not"
    del log.lines[: stored.count("\n") - 2]
    log.lines += [(START_NS + step * SECOND // 3, line(step)) for step in range(25, 40)]
    log.phase = "Succeeded"
    heard, listener = steps_heard()
    second = shipper(Kubelet({POD: log}), CampaignStore(store.s3, "state", "weeks", "successor"), listener)
    second.wait_for([POD], 20)
    second.close()
    assert text(store) == "".join(map(line, range(40)))
    assert heard == list(range(stored.count("\n"), 40)), "what is stored was taken, the rest is taken now"


def test_a_successor_of_a_steward_that_stored_all_still_knows_the_last_words(store: CampaignStore) -> None:
    log = PodLog([(START_NS, "CUDA out of memory\n"), (START_NS + 1, line(1))], "Failed")
    for _ in range(2):
        heard, listener = steps_heard()
        made = shipper(Kubelet({POD: log}), store, listener)
        made.wait_for([POD], 20)
        assert made.tail(POD) == ["CUDA out of memory"]
        made.close()
    assert heard == []


def test_a_steward_that_lost_its_lease_and_writes_on_shortens_and_doubles_nothing(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read seven lines that its successor, which reads further, stores before it."""
    monkeypatch.setattr(followed, "PIECE_BYTES", len(line(0)) * 10)
    log = PodLog([(START_NS + step, line(step)) for step in range(25)])
    heard, listener = steps_heard()
    old = shipper(Kubelet({POD: log}), store, listener)
    until(lambda: len(heard) == 25)
    pod_log = PodLog([(START_NS + step, line(step)) for step in range(48)], "Succeeded")
    new = shipper(Kubelet({POD: pod_log}), CampaignStore(store.s3, "state", "weeks", "new"), lambda *_: None)
    new.wait_for([POD], 20)
    new.close()
    assert text(store) == "".join(map(line, range(48)))
    log.lines += pod_log.lines[25:27]
    until(lambda: len(heard) == 27)
    old.close()
    assert text(store) == "".join(map(line, range(48)))


def test_every_byte_that_is_printed_is_put_once(store: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that prints on and on, stored while it does, in pieces of 4 KiB or of what waited for so long."""
    monkeypatch.setattr(followed, "PIECE_BYTES", 4096)
    monkeypatch.setattr(followed, "SOONEST_S", 0.05)
    put: list[int] = []
    counted = "before-parameter-build.s3.PutObject"
    store.s3.meta.events.register(counted, lambda params, **_: put.append(len(params["Body"])), unique_id="put")

    def training() -> Iterator[tuple[int, str]]:
        for step in range(3000):
            yield START_NS + step * SECOND, line(step)
            if step % 50 == 0:
                time.sleep(0.01)
        log.phase = "Succeeded"

    log = PodLog(still_to_come=training())
    made = shipper(Kubelet({POD: log}), store, lambda *_: None)
    made.wait_for([POD], 60)
    made.close()
    store.s3.meta.events.unregister(counted, unique_id="put")
    assert text(store) == "".join(map(line, range(3000)))
    printed = len(text(store))
    assert len(put) > 10 and sum(put) <= 3 * printed, f"{sum(put)} bytes put in {len(put)} pieces, {printed} printed"


def test_what_no_attempt_needs_any_more_is_forgotten_once_it_is_stored(store: CampaignStore) -> None:
    pods = {f"{POD}{number}": PodLog([(START_NS, line(1))], "Succeeded") for number in range(3)}
    made = shipper(Kubelet(pods), store, lambda *_: None, *pods)
    made.wait_for(list(pods), 20)
    made.forget()
    until(lambda: not made._pods and not made._followers)
    assert all(text(store, pod) == line(1) for pod in pods)
    made.close()


class ApiServer(BaseHTTPRequestHandler):
    """One line of each log, then silence; lists are empty."""

    protocol_version = "HTTP/1.1"
    ended = threading.Event()

    def do_GET(self) -> None:
        following = self.path.partition("?")[0].endswith("/log")
        body = (
            f"2026-11-22T00:00:00.5Z {line(1)}" if following else '{"kind": "PodList", "metadata": {}, "items": []}'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if following else "application/json")
        self.send_header("Content-Length", str(len(body) + following))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if following:
            self.close_connection = True
            self.ended.wait()

    def log_message(self, *_: Any) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


@contextmanager
def api_server() -> Iterator[Client]:
    server = _Server(("127.0.0.1", 0), ApiServer)
    serve(server)
    config = KubeConfig.from_one(
        cluster=Cluster(server=f"http://127.0.0.1:{server.server_port}"), user=User(token="t"), context_name="c"
    )
    try:
        yield Client(config=config, namespace="campaign", trust_env=False)
    finally:
        ApiServer.ended.set()
        server.shutdown()
        server.server_close()


def test_pods_are_listed_at_once_while_more_logs_are_followed_than_a_pool_holds(store: CampaignStore) -> None:
    pods = [f"c-a1-gang-0-{number}-x" for number in range(150)]
    heard: set[str] = set()
    with api_server() as client:
        log_shipper = LogShipper(PodLogs(followers_of(client)), store, lambda pod, event: heard.add(pod))
        for pod in pods:
            log_shipper.follow(pod)
        until(lambda: len(heard) == len(pods))
        asked = time.monotonic()
        assert attempts.pods(client, {"a": "b"}) == []
        assert time.monotonic() - asked < 5, "a pool that is full lets one wait for 10 s"
        log_shipper._stop.set()


def test_an_event_that_was_not_taken_is_left_to_the_successor_of_a_killed_steward(
    store: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was printed before it is stored; it and what follows is not, so that it is read again."""
    monkeypatch.setattr(followed, "SOONEST_S", 0.0)
    log = PodLog([(START_NS + step, line(step)) for step in range(6)])
    failed: list[int] = []

    def refusing(pod: str, event: dict[str, Any]) -> None:
        if event["step"] == 3:
            failed.append(3)
            raise OSError("S3 does not answer")

    first = shipper(Kubelet({POD: log}), store, refusing)
    until(lambda: len(failed) > 2 and text(store).count("\n") == 3)
    kill(first, monkeypatch)
    assert text(store) == "".join(map(line, range(3)))
    log.phase = "Succeeded"
    heard, listener = steps_heard()
    second = shipper(Kubelet({POD: log}), store, listener)
    second.wait_for([POD], 20)
    second.close()
    assert heard == [3, 4, 5] and text(store) == "".join(map(line, range(6)))
