"""Reading a 64-bit ELF object: its sections, symbols and code identity. Pure, on bytes.

An object file says what a kernel really is: which foreign functions it calls, what it exports,
whether anything runs before ``main``. Source text can hide all of that; the symbol table cannot.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_UNDEFINED, _COMMON = 0, 0xFFF2
_LOCAL = 0
_EXECUTABLE: Final = 4
_ALLOCATED: Final = 2
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_IDENT: Final = b"\x7fELF\x02\x01"


class NotAnObject(ValueError):
    """The bytes are no 64-bit little-endian ELF file, or a damaged one."""


@dataclass(frozen=True)
class Section:
    """One section; ``data`` is empty for one without content in the file."""

    name: str
    kind: int
    flags: int
    size: int
    link: int
    info: int
    data: bytes

    @property
    def is_loaded(self) -> bool:
        """Whether it takes memory when the program runs."""
        return bool(self.flags & _ALLOCATED)

    @property
    def is_code(self) -> bool:
        """Whether it holds instructions."""
        return bool(self.flags & _EXECUTABLE)


@dataclass(frozen=True)
class Symbol:
    """One symbol.

    Attributes:
        name: Its name; "" for sections.
        is_global: Whether other objects see it (weak ones, too).
        kind: Type number: 0 none, 1 object, 2 function, 3 section, 6 thread-local, 10 ifunc.
        section: Index of its section; 0 when undefined.
        value: Offset in its section.
        size: Bytes.
    """

    name: str
    is_global: bool
    kind: int
    section: int
    value: int
    size: int

    @property
    def is_undefined(self) -> bool:
        """Whether somebody else must provide it."""
        return self.section == _UNDEFINED and bool(self.name)

    @property
    def is_common(self) -> bool:
        """Whether it is a tentative definition."""
        return self.section == _COMMON


class ElfObject:
    """An object file.

    Args:
        data: The file's content.

    Raises:
        NotAnObject: It cannot be read.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self.sections = list(_sections(data))
            self.symbols = list(self._read_symbols())
        except NotAnObject:
            raise
        except (struct.error, IndexError, OverflowError, ValueError) as exc:
            raise NotAnObject(f"no readable ELF object: {exc}") from exc

    @property
    def undefined(self) -> set[str]:
        """Names that the object takes from elsewhere."""
        return {symbol.name for symbol in self.symbols if symbol.is_undefined}

    @property
    def exported(self) -> set[str]:
        """Names that the object gives to others."""
        return {
            symbol.name
            for symbol in self.symbols
            if symbol.is_global and symbol.name and not symbol.is_undefined
        }

    @property
    def static_bytes(self) -> int:
        """Writable memory that the object owns for the whole run."""
        return sum(
            s.size
            for s in self.sections
            if s.is_loaded and s.name.startswith((".data", ".bss", ".tbss", ".tdata"))
        )

    @property
    def code_bytes(self) -> int:
        """Size of its instructions."""
        return sum(s.size for s in self.sections if s.is_code)

    def identity(self) -> str:
        """SHA-256 of what the machine executes and reads: code, constants, and what they refer to.

        Free of names of files and of local labels, of comments, debug data and notes.
        """
        digest = hashlib.sha256()
        for index, section in enumerate(self.sections):
            if section.is_loaded and not section.name.startswith((".note", ".eh_frame")):
                digest.update(f"{section.name} {section.flags} {section.size}\n".encode())
                digest.update(section.data)
                for line in self._references(index):
                    digest.update(line.encode())
        return digest.hexdigest()

    def _references(self, target: int) -> Iterator[str]:
        """Relocations of a section, with what they point to."""
        for section in self.sections:
            if section.kind == _RELA and section.info == target:
                for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                    symbol = self.symbols[info >> 32]
                    yield f"{offset} {info & 0xFFFFFFFF} {self._target(symbol)} {addend}\n"

    def _target(self, symbol: Symbol) -> str:
        """A symbol by place where it has one, so that local names do not matter."""
        if symbol.section in (_UNDEFINED, _COMMON) or symbol.section >= len(self.sections):
            return symbol.name
        return f"{self.sections[symbol.section].name}+{symbol.value}"

    def _read_symbols(self) -> Iterator[Symbol]:
        for section in self.sections:
            if section.kind == _SYMTAB:
                names = self.sections[section.link].data
                for name, info, _, index, value, size in _SYMBOL.iter_unpack(section.data):
                    is_global = info >> 4 != _LOCAL
                    yield Symbol(_text(names, name), is_global, info & 15, index, value, size)


def _sections(data: bytes) -> Iterator[Section]:
    if not data.startswith(_IDENT):
        raise NotAnObject("not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(data)
    offset, entry, count, names_index = header[6], header[11], header[12], header[13]
    rows = [_SECTION.unpack_from(data, offset + entry * i) for i in range(count)]
    names = _content(data, rows[names_index])
    for row in rows:
        yield Section(
            name=_text(names, row[0]),
            kind=row[1],
            flags=row[2],
            size=row[5],
            link=row[6],
            info=row[7],
            data=_content(data, row),
        )


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    return b"" if row[1] == _NOBITS else data[row[4] : row[4] + row[5]]


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
