"""Servers on loopback that speak the protocols of models over real HTTP, and misbehave on demand.

A behaviour is a function from the request's body to an :class:`Answer`; a server plays a list of
them, the last one for ever.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-canary-0123456789"


@dataclass(frozen=True)
class Answer:
    """What a server sends: a status, a body or a proposal, headers; or nothing for ever."""

    status: int = 200
    body: Any = None
    text: str | None = None
    call: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    raw: bytes | None = None


Behaviour = Callable[[dict[str, Any]], Answer]


def says(text: str) -> Behaviour:
    """An answer in words."""
    return lambda _body: Answer(text=text)


def proposes(make: Callable[[dict[str, Any]], dict[str, Any]] | dict[str, Any]) -> Behaviour:
    """A tool call with a proposal."""
    return lambda body: Answer(call=make(body) if callable(make) else make)


def fails(status: int, body: Any = None, **headers: str) -> Behaviour:
    """An error of the server."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _body: Answer(status=status, body=body, headers=named)


def hangs() -> Behaviour:
    """No answer, and an open connection."""
    return lambda _body: Answer(hangs=True)


OVERFLOW = {
    "openai": (
        400,
        {
            "error": {
                "message": "maximum context length is 100 tokens",
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
            }
        },
    ),
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 300000 tokens > 200000 maximum",
            },
        },
    ),
}
QUOTA = {
    "openai": (
        429,
        {
            "error": {
                "message": "You exceeded your current quota",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            }
        },
    ),
    "anthropic": (
        402,
        {"type": "error", "error": {"type": "billing_error", "message": "credits are used up"}},
    ),
}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length))
        server = self.server
        server.seen.append(body)
        server.keys.append(self.headers.get("Authorization") or self.headers.get("X-Api-Key") or "")
        answer = server.next_behaviour()(body)
        if answer.hangs:
            server.closing.wait(60)
            return
        if answer.raw is not None:
            self._send(answer.status, answer.raw, answer.headers)
            return
        data = answer.body if answer.body is not None else _body(self.path, answer)
        self._send(answer.status, json.dumps(data).encode(), answer.headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Silence."""


def _body(path: str, answer: Answer) -> dict[str, Any]:
    if path.endswith("/chat/completions"):
        return _chat(answer)
    if path.endswith("/responses"):
        return _responses(answer)
    assert path.endswith("/messages"), path
    return _anthropic(answer)


def _chat(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.call is not None:
        function = {"name": "propose", "arguments": json.dumps(answer.call)}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "local",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1200, "completion_tokens": 80, "total_tokens": 1280},
    }


def _responses(answer: Answer) -> dict[str, Any]:
    if answer.call is None:
        content: list[dict[str, Any]] = [
            {"type": "output_text", "text": answer.text, "annotations": []}
        ]
        item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant"}
        item |= {"status": "completed", "content": content}
    else:
        item = {"type": "function_call", "id": "f", "call_id": "c", "name": "propose"}
        item |= {"arguments": json.dumps(answer.call), "status": "completed"}
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "local",
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1200,
            "output_tokens": 80,
            "total_tokens": 1280,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _anthropic(answer: Answer) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "text", "text": answer.text}
    if answer.call is not None:
        part = {"type": "tool_use", "id": "t", "name": "propose", "input": answer.call}
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "local",
        "content": [part],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1200, "output_tokens": 80},
    }


class Server(ThreadingHTTPServer):
    """A server on a free port of loopback."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, behaviours: list[Behaviour]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviours = behaviours
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.closing = threading.Event()

    def next_behaviour(self) -> Behaviour:
        """The next one; the last for ever."""
        return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]

    def handle_error(self, _request: object, _client: object) -> None:
        """A client that goes away is part of the play."""

    def settings(self, protocol: str, **more: Any) -> dict[str, Any]:
        """Section ``[ideators.llm]`` for this server."""
        host = f"http://127.0.0.1:{self.server_address[1]}"
        return {
            "provider": protocol,
            "model": "local",
            "base_url": host if protocol == "anthropic" else f"{host}/v1",
            "key_variable": "LOCAL_MODEL_KEY",
            "usd_in": 3.0,
            "usd_out": 15.0,
            **more,
        }


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    """A server that plays the behaviours."""
    server = Server(list(behaviours))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
