"""Generation D of the host's protocol, without I/O.

Each function is a generator of actions: it yields `Send` or `Sleep` and receives a `Reply`, or the exception
`ConnectionLost`. `client.py` performs the actions, synchronously or asynchronously.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from .errors import AdmissionLost, HostBusy, HostRefused, HostUnreachable, LeaseLost, ProtocolError, RolloutExists
from .types import Admission, RolloutRequest, RolloutResult

LEASE_HEADER = "X-Osmosis-Rollout-Lease"

# Statuses of a host that starts or stops, or of a proxy in front of one.
UNAVAILABLE = frozenset({502, 503, 504})

# Pauses before a repetition, in seconds. Results of a host can be read again for a minute.
PAUSE_FIRST, PAUSE_MAX = 0.1, 8.0

# Bounds of `Retry-After`, in seconds, and its default.
RETRY_AFTER_MIN, RETRY_AFTER_MAX, RETRY_AFTER_DEFAULT = 0.05, 60.0, 1.0

# Time that a request may take in addition to the time for which the host holds it open, in seconds.
ANSWER_SECS = 30.0
CANCEL_SECS = 5.0


@dataclass(frozen=True)
class Retries:
    """Times for which requests are repeated, in seconds."""

    reconnect: float
    admission: float | None


@dataclass(frozen=True)
class Send:
    """Sends a request."""

    method: str
    path: str
    json: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = ANSWER_SECS


@dataclass(frozen=True)
class Sleep:
    """Waits."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise ProtocolError(f"the answer with status {self.status} is not JSON: {self.body[:200]!r}") from None

    def detail(self) -> Any:
        """Returns the reason for a refusal."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return self.body[:500].decode(errors="replace")
        return value.get("detail", value) if isinstance(value, dict) else value

    def retry_after(self) -> float:
        try:
            seconds = float(self.headers.get("Retry-After", RETRY_AFTER_DEFAULT))
        except ValueError:
            seconds = RETRY_AFTER_DEFAULT
        return min(max(seconds, RETRY_AFTER_MIN), RETRY_AFTER_MAX)


class ConnectionLost(Exception):
    """A request got no response."""

    def __init__(self, why: str, may_have_arrived: bool) -> None:
        super().__init__(why)
        self.may_have_arrived = may_have_arrived


Action = Send | Sleep
Steps = Generator[Action, Any, Any]


class Outage:
    """Repeats requests to a host that cannot be reached, with growing pauses, for a limited time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.since: float | None = None
        self.pause = PAUSE_FIRST

    def over(self) -> None:
        self.since, self.pause = None, PAUSE_FIRST

    def pause_after(self, why: object) -> Sleep:
        """Returns the next pause, or raises after the last one."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        if now - self.since >= self.seconds:
            raise HostUnreachable(f"no answer of the host for {self.seconds:g} s: {why}")
        pause, self.pause = self.pause, min(2 * self.pause, PAUSE_MAX)
        return Sleep(min(pause, self.seconds - (now - self.since) + PAUSE_FIRST))


def path_of(rollout_id: str, what: str) -> str:
    """Returns the path of a resource of a rollout, such as its result."""
    return f"/rollout/{quote(rollout_id, safe='')}/{what}"


def refusal(reply: Reply, what: str) -> HostRefused:
    """Returns the error of a request that the host refused."""
    detail = reply.detail()
    hint = " (is the key right?)" if reply.status == 401 else ""
    return HostRefused(f"{what}: {reply.status}: {_words(detail)}{hint}", reply.status, detail)


def _words(detail: Any) -> str:
    """Returns the reason for a refusal as text, with the location of each invalid field."""
    if isinstance(detail, list):
        fields = [problem for problem in detail if isinstance(problem, dict)]
        return "; ".join(f"{'.'.join(map(str, one.get('loc', [])))}: {one.get('msg')}" for one in fields)
    return str(detail)


class Admitting:
    """A rollout that is being started.

    A request whose answer was lost is repeated. If the host then answers that it already has the rollout, the rollout's
    lease is unknown, so its result cannot be read: the rollout is cancelled and started again under another id. This is
    safe only for an id that no other caller can have, so an id that the caller chose is never replaced. A member of a group
    is not started again: the others may have been rated without it.
    """

    def __init__(self, request: RolloutRequest, retries: Retries) -> None:
        self.request = request
        self.retries = retries
        self.rollout_id = request.rollout_id or uuid4().hex
        self.may_be_admitted = False
        """Whether a post without a known answer may have arrived."""

    def ids(self) -> list[str]:
        """Returns the ids of all rollouts that the request starts."""
        return [self.rollout_id]

    def body(self) -> dict[str, Any]:
        """Returns the request's JSON."""
        return self.request.body(self.rollout_id)

    def parse(self, value: object) -> Any:
        """Reads the answer."""
        return Admission.parse(value, self.rollout_id)

    def steps(self) -> Steps:
        """Posts the request until the host admits it, and returns the admission."""
        began = time.monotonic()
        outage = Outage(self.retries.reconnect)
        was_lost = False
        while True:
            self.may_be_admitted = True
            try:
                reply = yield Send("POST", "/rollout", self.body())
            except ConnectionLost as lost:
                was_lost |= lost.may_have_arrived
                self.may_be_admitted = was_lost
                yield outage.pause_after(lost)
                continue
            self.may_be_admitted = was_lost
            if reply.status == 202:
                self.may_be_admitted = True
                return self.parse(reply.json())
            if reply.status == 429:
                outage.over()
                limit = self.retries.admission
                if limit is not None and time.monotonic() - began >= limit:
                    raise HostBusy(f"the host had no room for {limit:g} s: {_words(reply.detail())}")
                yield Sleep(reply.retry_after())
            elif reply.status in UNAVAILABLE:
                # A proxy may have passed the request on before it lost the answer.
                was_lost |= reply.status != 503
                yield outage.pause_after(f"{reply.status}: {_words(reply.detail())}")
            elif reply.status == 409 and was_lost and self.request.rollout_id is None:
                yield from cancel(self.ids())
                if self.request.group is not None:
                    # The group may be rated before another rollout took the seat, which would then wait for a group that is over.
                    why = f"the answer to the admission of a member of the group {self.request.group.id!r} was lost"
                    raise AdmissionLost(f"{why}; rollout {self.rollout_id} was cancelled")
                self.rollout_id, was_lost = uuid4().hex, False
                outage.over()
            elif reply.status == 409:
                why = f"the host has a rollout with the id {self.rollout_id!r}"
                if was_lost:
                    why += "; it may be this one, whose answer was lost: cancel it, then use another id"
                raise RolloutExists(why, 409, reply.detail())
            else:
                raise refusal(reply, "the host refused the rollout")


class AdmittingTree(Admitting):
    """A group of forks of one rollout that are being started, all or none."""

    def __init__(self, request: RolloutRequest, count: int, retries: Retries) -> None:
        super().__init__(request, retries)
        self.count = count

    def ids(self) -> list[str]:
        return [f"{self.rollout_id}-{member}" for member in range(self.count)]

    def body(self) -> dict[str, Any]:
        return super().body() | {"continuations": self.count}

    def parse(self, value: object) -> list[Admission]:
        rollouts = value.get("rollouts") if isinstance(value, dict) else None
        if not isinstance(rollouts, list) or len(rollouts) != self.count:
            raise ProtocolError(f"the answer to a request for {self.count} forks has other rollouts")
        return [Admission.parse(one, rollout_id) for one, rollout_id in zip(rollouts, self.ids())]


def poll(admission: Admission, retries: Retries) -> Steps:
    """Renews the lease, waits for a change of the status and returns it."""
    path = path_of(admission.rollout_id, "result")
    outage = Outage(max(retries.reconnect, admission.lease_secs))
    send = Send("GET", path, None, {LEASE_HEADER: admission.lease}, admission.result_wait_secs + ANSWER_SECS)
    while True:
        try:
            reply = yield send
        except ConnectionLost as lost:
            yield outage.pause_after(lost)
            continue
        if reply.status == 200:
            return RolloutResult.parse(reply.json(), admission.rollout_id)
        if reply.status in UNAVAILABLE:
            yield outage.pause_after(f"{reply.status}: {_words(reply.detail())}")
        elif reply.status == 429:
            outage.over()
            yield Sleep(reply.retry_after())
        elif reply.status in (403, 404):
            why = "the host was restarted without a journal, or the result was not read in time"
            raise LeaseLost(f"rollout {admission.rollout_id}: {_words(reply.detail())}: {why}")
        else:
            raise refusal(reply, f"the host refused a poll for rollout {admission.rollout_id}")


def result(admission: Admission, retries: Retries) -> Steps:
    """Polls until the rollout has ended."""
    while True:
        polled = yield from poll(admission, retries)
        if polled.is_ended:
            return polled


def cancel(rollout_ids: Iterable[str]) -> Steps:
    """Cancels rollouts, and returns the disposition of each."""
    outage = Outage(CANCEL_SECS)
    while True:
        try:
            reply = yield Send("POST", "/rollout/cancel", {"ids": list(rollout_ids)}, timeout=CANCEL_SECS)
        except ConnectionLost as lost:
            yield outage.pause_after(lost)
            continue
        if reply.status == 200:
            dispositions = reply.json().get("dispositions")
            if not isinstance(dispositions, dict):
                raise ProtocolError("the answer to a cancellation has no dispositions")
            return dispositions
        if reply.status not in UNAVAILABLE | {429}:
            raise refusal(reply, "the host refused a cancellation")
        yield outage.pause_after(f"{reply.status}: {_words(reply.detail())}")


def get(path: str, retries: Retries) -> Steps:
    """Reads a JSON document."""
    outage = Outage(retries.reconnect)
    while True:
        try:
            reply = yield Send("GET", path)
        except ConnectionLost as lost:
            yield outage.pause_after(lost)
            continue
        if reply.status == 200:
            return reply.json()
        if reply.status not in UNAVAILABLE | {429}:
            raise refusal(reply, f"the host refused GET {path}")
        yield outage.pause_after(f"{reply.status}: {_words(reply.detail())}")
