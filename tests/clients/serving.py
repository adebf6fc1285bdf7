"""Starts the package's own servers, of any release."""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from typing import Any

import httpx
import uvicorn

# Shared by all rollouts; opened when first needed, inside the server's event loop.
_model_client: httpx.AsyncClient | None = None


def model_client(connections: int | None) -> httpx.AsyncClient:
    global _model_client
    if _model_client is None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        _model_client = httpx.AsyncClient(limits=limits, timeout=600.0, trust_env=False)
    return _model_client


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--max-concurrent", type=int, default=64)
    parser.add_argument("--long", action="store_true", help="call a tool repeatedly while the model requests it")
    parser.add_argument("--full-at", type=int, metavar="N", help="429 while N rollouts are held")
    parser.add_argument(
        "--artifacts",
        metavar="DIR",
        help="the directory of trajectories; default: a directory removed at exit",
    )
    return parser


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            port = sockets[0].getsockname()[1]
            print(f"listening on http://127.0.0.1:{port}", flush=True)


def serve(make_app: Any, args: argparse.Namespace) -> None:
    """Serves `make_app()` until a signal, with the package's files kept out of the home directory."""
    with tempfile.TemporaryDirectory(prefix="osmosis-baseline-") as scratch:
        root = args.artifacts or os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or scratch
        os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = root
        # The protocol is explicit, because asyncio sets TCP_NODELAY only then, as on its own sockets.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", args.port))
        config = uvicorn.Config(make_app(), log_level="warning", access_log=False)
        _Announcing(config).run(sockets=[bound])
