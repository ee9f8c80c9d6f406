"""Logs: JSON lines for a daemon, quiet human lines for a person; never a secret in either.

The database is the record of what happened; a log line may be lost and nothing is lost with it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor, WrappedLogger

REDACTED: Final = "[redacted]"

#: Keys whose values never reach a log. Counts such as ``tokens`` are no secrets.
_SECRET_KEY: Final = re.compile(
    r"api[_-]?key|secret|passw(or)?d|authorization|credential|private[_-]?key|(^|[_-])token$",
    re.IGNORECASE,
)
_SECRET_VARIABLE: Final = re.compile(
    r"(?:^|_)(?:(?:API|ACCESS|SECRET|PRIVATE|ENCRYPTION|SIGNING)_?KEY|TOKEN|SECRET|PASSWORD"
    r"|PASSWD|PWD|PASSPHRASE|CREDENTIALS?)(?:_|$)|^PGPASSWORD$|^SSHPASS$",
    re.IGNORECASE,
)
#: Two that would match and hold a folder.
_NO_SECRETS: Final = frozenset({"PWD", "OLDPWD"})
#: What keys of well-known services look like, what follows ``Bearer``, what an address carries
#: before its host, and whole private keys.
_SECRET_TEXT: Final = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|hf|npm|xox[a-z])[-_][A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
#: Shorter values occur in any text by chance.
_MIN_SECRET: Final = 6
_PLAIN: Final = (bool, int, float, type(None))


def configure(*, as_json: bool) -> None:
    """Set up structlog and the standard library's logging, both to standard error.

    Args:
        as_json: One JSON object a line from level INFO, for a detached daemon or a service
            manager. Otherwise human lines, and only for warnings and worse.
    """
    level = logging.INFO if as_json else logging.WARNING
    before = _before_rendering(as_json=as_json)
    after: list[Processor] = [redact, _renderer(as_json=as_json)]
    structlog.configure(
        processors=[*before, *after],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Asked for at each line, because a live display replaces sys.stderr.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_standard_library(level, before, after)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Processor: blank secret-looking keys, values of secret variables, and known patterns.

    Belongs just before the renderer, after exceptions have become text.
    """
    secrets = _secrets(os.environ)
    return {_clean_text(key, secrets): _clean(key, value, secrets) for key, value in event.items()}


def redacted(text: str) -> str:
    """A text for people or for the record, without any secret that we know or recognise."""
    return _clean_text(text, _secrets(os.environ))


def record_crash(path: Path, exc: BaseException) -> None:
    """Append an unexpected error with its traceback (no local variables) as one JSON line."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(_crash(exc), ensure_ascii=False) + "\n")


def print_crash(exc: BaseException) -> None:
    """The same on standard error, for people, where there is no log yet."""
    print(_crash(exc)["traceback"], file=sys.stderr, end="")  # noqa: T201 - a log for people


def _crash(exc: BaseException) -> EventDict:
    event: EventDict = {
        "event": "unexpected error",
        "level": "critical",
        "error": type(exc).__name__,
        "traceback": "".join(traceback.format_exception(exc)),
    }
    return redact(None, "", structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "", event))


def _before_rendering(*, as_json: bool) -> list[Processor]:
    """Context first, then level, time and exceptions."""
    exceptions: Processor = structlog.processors.format_exc_info
    if as_json:
        # The default transformer prints local variables, and with them whatever they hold.
        exceptions = ExceptionRenderer(ExceptionDictTransformer(show_locals=False, use_rich=False))
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(
            fmt="iso" if as_json else "%H:%M:%S", utc=as_json, key="timestamp"
        ),
        exceptions,
    ]


def _renderer(*, as_json: bool) -> Processor:
    if as_json:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
        pad_event_to=0,
    )


class _StandardError(logging.Handler):
    """Writes to whatever ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a broken stream must not break the caller."""
        try:
            print(self.format(record), file=sys.stderr)  # noqa: T201 - this is the log
        except OSError:
            return


def _configure_standard_library(
    level: int, before: list[Processor], after: list[Processor]
) -> None:
    """Lines of other libraries look like ours and are redacted like ours."""
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = _StandardError()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[remove_meta, *after], foreign_pre_chain=before
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _StandardError)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    # It would write a line at INFO for each callback.
    logging.getLogger("transitions").setLevel(logging.WARNING)


def _secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of secret variables, longest first, so that none hides inside another.

    Also as ``repr`` and JSON escape them, because texts of errors quote their arguments.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if name not in _NO_SECRETS and _SECRET_VARIABLE.search(name) and len(value) >= _MIN_SECRET:
            found |= {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    return tuple(sorted(found, key=len, reverse=True))


def _clean(key: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if _SECRET_KEY.search(key) and not isinstance(value, _PLAIN):
        return REDACTED
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {_clean_text(str(k), secrets): _clean(str(k), v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", item, secrets) for item in value]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return _clean_text(str(value), secrets)


def _clean_text(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return _SECRET_TEXT.sub(REDACTED, text)
