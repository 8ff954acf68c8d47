"""strace's log of a command as a list of calls that change files, in the order in which they were made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "openat,creat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,"
    "mkdir,mkdirat,ftruncate,truncate,fallocate,lseek,"
    # Not modelled: a recording that has one of them is refused, so that nothing is overlooked.
    "open,writev,pwritev,pwritev2,copy_file_range,sendfile,symlink,symlinkat,msync,sync,syncfs,sync_file_range"
)
OPTIONS = ("-y", "-xx", "-s", str(1 << 24), "-e", f"trace={CALLS}")

_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_UNFINISHED = " <unfinished ...>"
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"(AT_FDCWD|\d+)(?:<([^>]*)>)?")


@dataclass(frozen=True)
class Call:
    """One successful call. Paths are absolute; ``fd`` is its first descriptor, or the one that an open returned."""

    name: str
    fd: int = -1
    paths: tuple[str, ...] = ()
    data: bytes = b""
    at: int = -1  # offset or length, where the call has one
    result: int = 0
    flags: str = ""
    lied: bool = False  # strace answered in the kernel's place: nothing was done


def parse(log: Path, cwd: Path) -> list[Call]:
    """The calls of a log that was made with :data:`OPTIONS`.

    Raises
    ------
    ValueError
        A line that is not understood, or a call that is not modelled.
    """
    return list(_calls(log.read_text(), cwd))


def _calls(text: str, cwd: Path) -> Iterator[Call]:
    begun: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if not found:
            if "+++" in line or "---" in line:
                continue  # an exit, a signal
            raise ValueError(f"strace wrote {line[:200]!r}")
        thread, name, rest = found.groups()
        if rest.endswith(_UNFINISHED):
            begun[thread, name] = rest.removesuffix(_UNFINISHED)
            continue
        rest = begun.pop((thread, name), "") + rest
        arguments, _, result = rest.rpartition(" = ")
        if result.startswith(("-1 ", "?")):
            continue
        yield _call(name, arguments.rstrip().removesuffix(")"), result, cwd)


def _call(name: str, arguments: str, result: str, cwd: Path) -> Call:
    texts = [bytes.fromhex(t.replace("\\x", "")) for t in _TEXT.findall(arguments)]
    bare = _TEXT.sub("_", arguments)
    fields = [f.strip() for f in re.split(r",\s*", bare)]
    lied = "(INJECTED)" in result
    number = int(re.match(r"-?\d+", result)[0])  # type: ignore[index]
    match name:
        case "openat" | "creat":
            flags = fields[2] if name == "openat" else "O_WRONLY|O_CREAT|O_TRUNC"
            path = _path(fields[0] if name == "openat" else "AT_FDCWD", texts[0], cwd)
            return Call("open", number, (path,), flags=flags)
        case "write":
            return Call("write", _fd(fields[0]), (_of(fields[0]),), texts[0][:number], result=number)
        case "pwrite64":
            return Call("pwrite", _fd(fields[0]), (_of(fields[0]),), texts[0][:number], int(fields[3]), number)
        case "fsync" | "fdatasync":
            return Call("fsync", _fd(fields[0]), (_of(fields[0]),), lied=lied)
        case "ftruncate":
            return Call("truncate", _fd(fields[0]), (_of(fields[0]),), at=int(fields[1]))
        case "fallocate":
            return Call(
                "allocate", _fd(fields[0]), (_of(fields[0]),), at=int(fields[2]) + int(fields[3]), flags=fields[1]
            )
        case "lseek":
            return Call("seek", _fd(fields[0]), (_of(fields[0]),), at=number)
        case "rename" | "link":
            return Call(name, paths=tuple(_path("AT_FDCWD", t, cwd) for t in texts))
        case "renameat" | "renameat2" | "linkat":
            kind = "link" if name == "linkat" else "rename"
            return Call(kind, paths=(_path(fields[0], texts[0], cwd), _path(fields[2], texts[1], cwd)))
        case "unlink" | "rmdir" | "mkdir":
            return Call("unlink" if name == "rmdir" else name, paths=(_path("AT_FDCWD", texts[0], cwd),))
        case "unlinkat" | "mkdirat":
            return Call(name.removesuffix("at"), paths=(_path(fields[0], texts[0], cwd),))
    raise ValueError(f"a call that the model does not know: {name}({bare[:200]})")


def _fd(field: str) -> int:
    return int(_FD.match(field)[1])  # type: ignore[index]


def _of(field: str) -> str:
    """The path that strace gives for a descriptor."""
    found = _FD.match(field)
    return bytes.fromhex((found[2] or "").replace("\\x", "")).decode() if found else ""


def _path(folder: str, name: bytes, cwd: Path) -> str:
    text = name.decode()
    if text.startswith("/"):
        return text
    found = _FD.match(folder)
    base = str(cwd) if found is None or found[1] == "AT_FDCWD" else _of(folder)
    return f"{base}/{text}"
