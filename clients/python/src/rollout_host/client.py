"""Clients of a rollout-host server: start rollouts and wait for their results.

    from rollout_host.client import Client, RolloutRequest

    with Client("http://127.0.0.1:9000") as host:
        request = RolloutRequest("What is 17 + 25?", chat_completions_url="http://127.0.0.1:9100/v1", label="42")
        print(host.run(request).reward)

`AsyncClient` has the same methods as coroutines. The address of a plugin of a catalog ends in `/p/NAME`.

**A rollout has one result or raises an error.** A rollout that fails raises `RolloutFailed`. The client waits for a host
that is down, full or restarting, and raises an error when its timeout expires. Neither becomes a reward. A repeated
request never leads to two results of one rollout: see `_protocol.Admitting`.

The package httpx is required: `pip install 'rollout-host[client]'`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4

from . import _protocol
from ._optional import need
from ._protocol import Admitting, AdmittingTree, ConnectionLost, Reply, Retries, Send, Steps
from .errors import (
    AdmissionLost,
    HostBusy,
    HostRefused,
    HostUnreachable,
    LeaseLost,
    NoReward,
    ProtocolError,
    RolloutCancelled,
    RolloutExists,
    RolloutFailed,
    RolloutHostError,
    RolloutTimeout,
)
from .types import (
    Admission,
    FailedMember,
    ForkPoint,
    GroupReport,
    GroupSeat,
    Message,
    RolloutRequest,
    RolloutResult,
    RolloutStatus,
    Sample,
)

need("httpx", "client", "rollout_host.client")
import httpx  # noqa: E402

__all__ = [
    "Admission",
    "AdmissionLost",
    "AsyncClient",
    "AsyncRolloutHandle",
    "Client",
    "FailedMember",
    "ForkPoint",
    "GroupReport",
    "GroupSeat",
    "HostBusy",
    "HostRefused",
    "HostUnreachable",
    "LeaseLost",
    "Message",
    "NoReward",
    "ProtocolError",
    "RolloutCancelled",
    "RolloutExists",
    "RolloutFailed",
    "RolloutHandle",
    "RolloutHostError",
    "RolloutRequest",
    "RolloutResult",
    "RolloutStatus",
    "RolloutTimeout",
    "Sample",
]

CONNECT_SECS = 10.0

T = TypeVar("T")


class _Settings:
    """Address, key and timeouts of a server, for both clients."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        reconnect_timeout: float,
        admission_timeout: float | None,
    ) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"the address of a host begins with http:// or https://, not {url!r}")
        # The password of an address is the key, as for the host's other callers. Addresses appear in errors and logs.
        if api_key is None and parsed.password:
            api_key = unquote(parsed.password)
        self.url = str(parsed.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.retries = Retries(reconnect_timeout, admission_timeout)
        # Reading the certificates takes a tenth of a second, and redirects from HTTP to HTTPS are not followed.
        self.verify = parsed.scheme == "https"

    def request(self, send: Send, deadline: float | None) -> dict[str, Any]:
        """Returns the arguments of a request."""
        left = send.timeout if deadline is None else max(min(send.timeout, deadline - time.monotonic()), 0.001)
        return {
            "method": send.method,
            "url": self.url + send.path,
            "json": send.json,
            "headers": self.headers | send.headers,
            "timeout": httpx.Timeout(left, connect=min(left, CONNECT_SECS), pool=None),
            "follow_redirects": False,
        }

    def lost(self, error: httpx.TransportError) -> ConnectionLost:
        not_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        return ConnectionLost(f"{self.url}: {type(error).__name__}: {error}", not not_sent)


async def gather(awaitables: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Awaits all of these concurrently. If one raises or the caller is cancelled, the others are cancelled and awaited first."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _check(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise RolloutTimeout("the rollout took longer than the caller's timeout")


class Client:
    """A client of one server, or of one plugin of a catalog. Threads may share it.

    Args:
        url: The server's address; `http://HOST/p/NAME` for a plugin of a catalog.
        api_key: The server's key, if it requires one.
        reconnect_timeout: Seconds for which a host that cannot be reached is tried again, for example while it restarts.
        admission_timeout: Seconds for which a request to a full host is repeated, after the delays that the host
            requests. None waits without limit.
        http: A client of httpx with settings of its own, such as certificates. The caller closes it.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        reconnect_timeout: float = 120.0,
        admission_timeout: float | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        self._settings = _Settings(url, api_key, reconnect_timeout, admission_timeout)
        self._owns = http is None
        limits = httpx.Limits(max_connections=None)
        self._http = http or httpx.Client(limits=limits, verify=self._settings.verify)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Running rollouts are left to the host, which cancels them when their leases expire."""
        if self._owns:
            self._http.close()

    def _drive(self, steps: Steps, deadline: float | None = None) -> Any:
        try:
            action = next(steps)
            while True:
                _check(deadline)
                if isinstance(action, Send):
                    try:
                        got = self._http.request(**self._settings.request(action, deadline))
                    except httpx.TransportError as error:
                        _check(deadline)
                        action = steps.throw(self._settings.lost(error))
                    else:
                        action = steps.send(Reply(got.status_code, got.headers, got.content))
                else:
                    left = action.seconds if deadline is None else min(action.seconds, deadline - time.monotonic())
                    time.sleep(max(left, 0.0))
                    action = next(steps)
        except StopIteration as stop:
            return stop.value

    def start(self, request: RolloutRequest, *, timeout: float | None = None) -> RolloutHandle:
        """Starts a rollout. While the host is full, this waits."""
        admitting = Admitting(request, self._settings.retries)
        try:
            return RolloutHandle(self, self._drive(admitting.steps(), _deadline(timeout)))
        except BaseException:
            if admitting.may_be_admitted:
                self._abandon(admitting.rollout_id)
            raise

    def run(self, request: RolloutRequest, *, timeout: float | None = None) -> RolloutResult:
        """Starts a rollout and waits for its result.

        Raises `RolloutFailed` unless it succeeded. If the wait ends otherwise, by `timeout` or an interrupt, the rollout is
        cancelled.
        """
        deadline = _deadline(timeout)
        handle = self.start(request, timeout=timeout)
        try:
            return handle.result(timeout=None if deadline is None else deadline - time.monotonic())
        except (RolloutFailed, LeaseLost):
            raise
        except BaseException:
            self._abandon(handle.rollout_id)
            raise

    def fork(self, request: RolloutRequest, of: str, turn: int, *, timeout: float | None = None) -> RolloutHandle:
        """Starts a rollout that continues the rollout `of` after `turn` calls of the model."""
        return self.start(request.fork(of, turn), timeout=timeout)

    def tree(
        self, request: RolloutRequest, of: str, turn: int, count: int, *, timeout: float | None = None
    ) -> list[RolloutHandle]:
        """Starts `count` rollouts that continue the rollout `of` after `turn` calls of the model, as a group: all or none.
        While the host has no room for all, this waits."""
        admitting = AdmittingTree(request.fork(of, turn), count, self._settings.retries)
        try:
            return [RolloutHandle(self, one) for one in self._drive(admitting.steps(), _deadline(timeout))]
        except BaseException:
            if admitting.may_be_admitted:
                self._abandon(*admitting.ids())
            raise

    def cancel(self, *rollout_ids: str) -> dict[str, str]:
        """Cancels rollouts; returns `cancelled_queued`, `cancelled_running` or `not_found` for each."""
        return dict(self._drive(_protocol.cancel(rollout_ids)))

    def trajectory(self, rollout_id: str) -> dict[str, Any]:
        """Returns the trajectory of a rollout, from the host's journal."""
        path = _protocol.path_of(rollout_id, "trajectory")
        return dict(self._drive(_protocol.get(path, self._settings.retries)))

    def health(self) -> dict[str, Any]:
        """Returns the server's health."""
        return dict(self._drive(_protocol.get("/health", self._settings.retries)))

    def _abandon(self, *rollout_ids: str) -> None:
        """Cancels rollouts that no one waits for. If that fails, their leases end them."""
        try:
            self.cancel(*rollout_ids)
        except RolloutHostError:
            pass


class RolloutHandle:
    """A rollout that was started."""

    def __init__(self, client: Client, admission: Admission) -> None:
        self._client = client
        self.admission = admission

    @property
    def rollout_id(self) -> str:
        return self.admission.rollout_id

    def poll(self) -> RolloutResult:
        """Renews the lease and returns the status when it changes, at the latest after the host's own wait."""
        polled: RolloutResult = self._client._drive(_protocol.poll(self.admission, self._client._settings.retries))
        return polled

    def result(self, *, timeout: float | None = None) -> RolloutResult:
        """Waits for the result. Raises `RolloutFailed` unless the rollout succeeded."""
        steps = _protocol.result(self.admission, self._client._settings.retries)
        result: RolloutResult = self._client._drive(steps, _deadline(timeout))
        result.raise_for_status()
        return result

    def cancel(self) -> str:
        """Cancels the rollout; returns `cancelled_queued`, `cancelled_running` or `not_found`."""
        return self._client.cancel(self.rollout_id)[self.rollout_id]


class AsyncClient:
    """`Client` with coroutines. One event loop uses it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        reconnect_timeout: float = 120.0,
        admission_timeout: float | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._settings = _Settings(url, api_key, reconnect_timeout, admission_timeout)
        self._owns = http is None
        limits = httpx.Limits(max_connections=None)
        self._http = http or httpx.AsyncClient(limits=limits, verify=self._settings.verify)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Running rollouts are left to the host, which cancels them when their leases expire."""
        if self._owns:
            await self._http.aclose()

    async def _drive(self, steps: Steps, deadline: float | None = None) -> Any:
        try:
            action = next(steps)
            while True:
                _check(deadline)
                if isinstance(action, Send):
                    try:
                        got = await self._http.request(**self._settings.request(action, deadline))
                    except httpx.TransportError as error:
                        _check(deadline)
                        action = steps.throw(self._settings.lost(error))
                    else:
                        action = steps.send(Reply(got.status_code, got.headers, got.content))
                else:
                    left = action.seconds if deadline is None else min(action.seconds, deadline - time.monotonic())
                    await asyncio.sleep(max(left, 0.0))
                    action = next(steps)
        except StopIteration as stop:
            return stop.value

    async def start(self, request: RolloutRequest, *, timeout: float | None = None) -> AsyncRolloutHandle:
        """Starts a rollout. While the host is full, this waits."""
        admitting = Admitting(request, self._settings.retries)
        try:
            return AsyncRolloutHandle(self, await self._drive(admitting.steps(), _deadline(timeout)))
        except BaseException:
            if admitting.may_be_admitted:
                await self._abandon(admitting.rollout_id)
            raise

    async def run(self, request: RolloutRequest, *, timeout: float | None = None) -> RolloutResult:
        """Starts a rollout and waits for its result.

        Raises `RolloutFailed` unless it succeeded. If the wait ends otherwise, by `timeout` or because the task is cancelled,
        the rollout is cancelled.
        """
        deadline = _deadline(timeout)
        handle = await self.start(request, timeout=timeout)
        try:
            return await handle.result(timeout=None if deadline is None else deadline - time.monotonic())
        except (RolloutFailed, LeaseLost):
            raise
        except BaseException:
            await self._abandon(handle.rollout_id)
            raise

    async def run_many(
        self, requests: Iterable[RolloutRequest], *, max_concurrent: int = 1024, timeout: float | None = None
    ) -> list[RolloutResult | RolloutHostError]:
        """Runs rollouts concurrently, and returns the result of each, or its error, in the order of the requests."""
        slots = asyncio.Semaphore(max_concurrent)

        async def run(request: RolloutRequest) -> RolloutResult | RolloutHostError:
            async with slots:
                try:
                    return await self.run(request, timeout=timeout)
                except RolloutHostError as error:
                    return error

        return await gather(run(request) for request in requests)

    async def fork(
        self, request: RolloutRequest, of: str, turn: int, *, timeout: float | None = None
    ) -> AsyncRolloutHandle:
        """Starts a rollout that continues the rollout `of` after `turn` calls of the model."""
        return await self.start(request.fork(of, turn), timeout=timeout)

    async def tree(
        self, request: RolloutRequest, of: str, turn: int, count: int, *, timeout: float | None = None
    ) -> list[AsyncRolloutHandle]:
        """Starts `count` rollouts that continue the rollout `of` after `turn` calls of the model, as a group: all or none.
        While the host has no room for all, this waits."""
        admitting = AdmittingTree(request.fork(of, turn), count, self._settings.retries)
        try:
            return [AsyncRolloutHandle(self, one) for one in await self._drive(admitting.steps(), _deadline(timeout))]
        except BaseException:
            if admitting.may_be_admitted:
                await self._abandon(*admitting.ids())
            raise

    async def run_group(
        self, requests: Iterable[RolloutRequest], *, group: str | None = None, timeout: float | None = None
    ) -> list[RolloutResult | RolloutHostError]:
        """Runs the members of a group concurrently, and returns the result of each, or its error, in their order. The
        group's id is new unless it is given."""
        members, group = list(requests), group or uuid4().hex
        seated = [request.in_group(group, len(members), number) for number, request in enumerate(members)]
        # Members wait for each other, so all must run at once.
        return await self.run_many(seated, max_concurrent=max(len(seated), 1), timeout=timeout)

    async def cancel(self, *rollout_ids: str) -> dict[str, str]:
        """Cancels rollouts; returns `cancelled_queued`, `cancelled_running` or `not_found` for each."""
        return dict(await self._drive(_protocol.cancel(rollout_ids)))

    async def trajectory(self, rollout_id: str) -> dict[str, Any]:
        """Returns the trajectory of a rollout, from the host's journal."""
        path = _protocol.path_of(rollout_id, "trajectory")
        return dict(await self._drive(_protocol.get(path, self._settings.retries)))

    async def health(self) -> dict[str, Any]:
        """Returns the server's health."""
        return dict(await self._drive(_protocol.get("/health", self._settings.retries)))

    async def _abandon(self, *rollout_ids: str) -> None:
        """Cancels rollouts that no one waits for, even if this task is cancelled. If that fails, their leases end them."""
        cancelling = asyncio.ensure_future(self.cancel(*rollout_ids))
        while not cancelling.done():
            try:
                await asyncio.shield(cancelling)
            except asyncio.CancelledError:
                if cancelling.cancelled():
                    return
            except RolloutHostError:
                return


class AsyncRolloutHandle:
    """A rollout that was started."""

    def __init__(self, client: AsyncClient, admission: Admission) -> None:
        self._client = client
        self.admission = admission

    @property
    def rollout_id(self) -> str:
        return self.admission.rollout_id

    async def poll(self) -> RolloutResult:
        """Renews the lease and returns the status when it changes, at the latest after the host's own wait."""
        steps = _protocol.poll(self.admission, self._client._settings.retries)
        polled: RolloutResult = await self._client._drive(steps)
        return polled

    async def result(self, *, timeout: float | None = None) -> RolloutResult:
        """Waits for the result. Raises `RolloutFailed` unless the rollout succeeded."""
        steps = _protocol.result(self.admission, self._client._settings.retries)
        result: RolloutResult = await self._client._drive(steps, _deadline(timeout))
        result.raise_for_status()
        return result

    async def cancel(self) -> str:
        """Cancels the rollout; returns `cancelled_queued`, `cancelled_running` or `not_found`."""
        return (await self._client.cancel(self.rollout_id))[self.rollout_id]
