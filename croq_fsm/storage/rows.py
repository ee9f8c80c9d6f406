"""Rows to domain values and back: the one place that knows both."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import RowMapping

from croq_fsm.domain.build import Build
from croq_fsm.domain.device import Device
from croq_fsm.domain.measurement import Estimate, Samples
from croq_fsm.domain.records import Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Bottleneck, Category, Decision, State, Status
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Work


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, any Unicode as it is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def session(row: RowMapping) -> Session:
    """A session row as a value."""
    return Session(
        id=row["id"],
        task=Task.model_validate_json(row["task"]),
        device=Device.model_validate_json(row["device"]),
        dialect=json.loads(row["dialect"]),
        seed=row["seed"],
        config_hash=row["config_hash"],
        fsm_version=row["fsm_version"],
        state=State[row["state"]],
        seq=row["seq"],
        status=Status[row["status"]],
        reason=row["reason"],
        work=Work.model_validate_json(row["work"]),
        begins=row["begins"] if row["begun_seq"] == row["seq"] else 0,
        round=row["round"],
        next_iteration=row["next_iteration"],
        next_attempt=row["next_attempt"],
        streak=row["streak"],
        macro_run=row["macro_run"],
        counts={Decision[k]: v for k, v in json.loads(row["counts"]).items()},
        log_sizes=json.loads(row["log_sizes"]),
        best_iteration=row["best_iteration"],
        noise=row["noise"],
        library_seconds=row["library_seconds"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def round_record(row: RowMapping) -> Round:
    """A round row as a value."""
    fields: dict[str, Any] = {k: v for k, v in row.items() if k != "session_id"}
    return Round(
        **{
            **fields,
            "decision": Decision[row["decision"]],
            "bottleneck": Bottleneck[row["bottleneck"]],
            "category": Category[row["category"]],
            "macro_only": bool(row["macro_only"]),
            "levers": tuple(json.loads(row["levers"])),
        }
    )


def round_row(record: Round) -> dict[str, Any]:
    """A round as a row, without the session's id."""
    return {
        **vars(record),
        "decision": record.decision.name,
        "bottleneck": record.bottleneck.name,
        "category": record.category.name,
        "macro_only": int(record.macro_only),
        "levers": dumps(record.levers),
    }


def pack_samples(samples: Samples | None) -> bytes | None:
    """Raw samples, compressed; nothing is rounded or dropped."""
    return None if samples is None else zlib.compress(samples.model_dump_json().encode())


def unpack_samples(data: bytes | None) -> Samples | None:
    """Inverse of ``pack_samples``."""
    return None if data is None else Samples.model_validate_json(zlib.decompress(data))


def build_or_none(text: str | None) -> Build | None:
    """A stored build, or None."""
    return None if text is None else Build.model_validate_json(text)


def estimate_or_none(text: str | None) -> Estimate | None:
    """A stored estimate, or None."""
    return None if text is None else Estimate.model_validate_json(text)


def structure_text(structure: Mapping[str, str]) -> str:
    """Structural features as one comparable text."""
    return dumps(dict(structure))
