"""Logs: no secret in any line, no local variables, and one shape for all libraries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from cli_support import restore_logging

from croq_fsm import log

#: With characters that JSON and repr escape.
CANARY = "canary-\"7f3e\\é'9a"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave logging as it was found."""
    yield
    restore_logging()


@pytest.fixture
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the environment, as a provider's library wants it."""
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", CANARY)
    monkeypatch.setenv("HUB_TOKEN", f"{CANARY}-token")


def fail(kind: type[Exception], text: str) -> None:
    """Raise with the text in the message and in a local variable."""
    local_key = text
    raise kind(local_key)


def say_it_everywhere() -> None:
    """Put the canary into every part of an event, and into a library's."""
    logger = structlog.get_logger("croq_fsm.test")
    logger.warning("told " + CANARY)  # noqa: G003 - the message itself is the case
    logger.warning("value", text=f"a {CANARY} b", nested={"deep": [(CANARY,), {CANARY: 1}]})
    logger.warning("bytes", output=CANARY.encode(), path=Path("/x") / "y", thing={1: object()})
    with structlog.contextvars.bound_contextvars(bound=CANARY):
        logger.warning("context")
    try:
        fail(KeyError, CANARY)
    except KeyError:
        logger.exception("failed")
        logging.getLogger("some.library").exception("also here: %s", CANARY)


@pytest.mark.usefixtures("_secret")
@pytest.mark.parametrize("as_json", [True, False])
def test_no_byte_of_a_secret_is_logged(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """Message, value, key, bytes, context, exception, traceback, library: all are redacted."""
    log.configure(as_json=as_json)
    say_it_everywhere()
    text = capsys.readouterr().err
    for form in (CANARY, "7f3e", repr(CANARY)[1:-1], json.dumps(CANARY)[1:-1]):
        assert form not in text
    assert text.count(log.REDACTED) >= 8
    assert "local_key =" not in text


@pytest.mark.usefixtures("_secret")
def test_a_crash_record_is_redacted(tmp_path: Path) -> None:
    """The traceback of an unexpected error holds neither the secret nor local variables."""
    path = tmp_path / "daemon.log"
    try:
        fail(ValueError, f"cannot use {CANARY}")
    except ValueError as exc:
        log.record_crash(path, exc)
    event = json.loads(path.read_text(encoding="utf-8"))
    assert CANARY not in event["traceback"]
    assert f"ValueError: cannot use {log.REDACTED}" in event["traceback"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("api_key", True),
        ("OPENAI_API_KEY", True),
        ("password", True),
        ("Authorization", True),
        ("session_token", True),
        ("token", True),
        ("tokens", False),
        ("kernel", False),
        ("keyboard", False),
    ],
)
def test_keys_that_look_like_secrets(key: str, *, hidden: bool) -> None:
    """Values under such keys are hidden whatever they are; counts of tokens are not."""
    event = log.redact(None, "", {"event": "x", key: "plain words"})
    assert event[key] == (log.REDACTED if hidden else "plain words")
    assert log.redact(None, "", {key: 17})[key] == 17


def test_known_forms_of_keys_are_hidden() -> None:
    """Keys of services are recognised even when no variable holds them."""
    text = "used sk-abcdefghijklmnopqrstuv and Bearer abcdefgh12345678 today"
    event = log.redact(None, "", {"event": text})
    assert event["event"] == f"used {log.REDACTED} and Bearer {log.REDACTED} today"


def test_json_lines_hold_level_time_and_context(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is one object; information is shown, debugging is not."""
    log.configure(as_json=True)
    logger = structlog.get_logger("croq_fsm.test")
    with structlog.contextvars.bound_contextvars(seq=7):
        logger.debug("hidden")
        logger.info("shown", round=3)
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["seq"], event["round"]) == ("shown", "info", 7, 3)
    assert event["timestamp"].endswith("Z")


def test_a_person_sees_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    """In the foreground information is silent; the state machine's library is always."""
    log.configure(as_json=False)
    structlog.get_logger("croq_fsm.test").info("quiet")
    logging.getLogger("transitions.core").info("callback")
    structlog.get_logger("croq_fsm.test").warning("loud", why="x")
    logging.getLogger("other").warning("loud too")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "[warning  ] loud" in lines[0]
    assert "loud too" in lines[1]


def test_configuring_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A second set-up replaces the first."""
    log.configure(as_json=True)
    log.configure(as_json=False)
    logging.getLogger("other").warning("once")
    assert capsys.readouterr().err.count("once") == 1
