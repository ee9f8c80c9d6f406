"""A built candidate and what its build rests on."""

from __future__ import annotations

from croq_fsm.domain.ideas import Replace
from croq_fsm.domain.model import Value


class Candidate(Value):
    """The unit of inheritance: source, flags and patches of generated code.

    Attributes:
        source: Complete text in the DSL.
        flags: Extra compiler flags, from the allow-list.
        patches: Edits of the generated target source.
    """

    source: str
    flags: tuple[str, ...] = ()
    patches: tuple[Replace, ...] = ()


class Build(Value):
    """Result of building a candidate. Paths are relative to the cache folder.

    Attributes:
        key: Content address: source, flags, patches, compilers, headers, harness.
        binary: Path of the runnable file.
        binary_sha256: Its hash.
        device_code: Hash of the code that runs on the device without comments and paths;
            equal for candidates that differ in text only.
        generated: Path of the generated target source, or "".
        log: Path of the build log.
        commands: Command lines, for the reproduce-by-hand scripts.
        compilers: Name → version.
        harness: Hash of the host harness that was linked.
        remarks: Compiler remarks that matter (registers, spills, C7520, vectoriser).
        resources: ``registers``, ``spill_bytes``, ``smem_static`` … as the compiler reports.
        seconds: Wall time of the build; 0.0 when it came from the cache.
        cached: Whether it came from the cache.
        sandbox: Level of the sandbox that it was compiled in; "" where nobody looked.
    """

    key: str
    binary: str
    binary_sha256: str
    device_code: str
    generated: str = ""
    log: str = ""
    commands: tuple[str, ...] = ()
    compilers: dict[str, str] = {}
    harness: str = ""
    remarks: tuple[str, ...] = ()
    resources: dict[str, int] = {}
    seconds: float = 0.0
    cached: bool = False
    sandbox: str = ""
