"""Directories of shards: a whole set, and the ways in which one is not a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py

from dcr_mpi.errors import CorruptInput, GeometryError, NotReady

from .words import KINDS, SETS, Refusal, SetCase, noise, put


def shard(path: Path, step: int | None, name: str, seed: int = 61) -> None:
    with h5py.File(path, "w") as file:
        if step is not None:
            file.attrs["step"] = step
        put(file, name, KINDS["bf16"], (8,), noise(16, seed))


def _set(
    there: Sequence[tuple[str, int | None]], refused: Refusal | None = None, files: tuple[str, ...] | None = None,
    beside: Sequence[str] = (), listed: tuple[str, ...] = (),
) -> Callable[[Path], SetCase]:  # fmt: skip
    """Shards (file, step), one dataset each, and further files that are no shards."""

    def build(directory: Path) -> SetCase:
        directory.mkdir()
        for file, step in there:
            shard(directory / file, step, f"of/{file}")
        for file in beside:
            (directory / file).write_bytes(b"not a shard")
        names = listed or tuple(sorted(file for file, _ in there))
        return SetCase(
            directory, () if refused else names, files, refused, None if refused or not there else there[0][1]
        )

    return build


_THREE = (("s2.h5", 7), ("s0.h5", 7), ("s1.hdf5", 7))
SETS.update(
    {
        "set_whole": _set(_THREE),
        "set_without_step": _set([(file, None) for file, _ in _THREE]),
        "set_of_layout_in_its_order": _set(
            _THREE, files=("s2.h5", "s1.hdf5", "s0.h5"), listed=("s2.h5", "s1.hdf5", "s0.h5")
        ),
        "set_with_other_files": _set(_THREE, beside=("notes.txt", ".s3.h5", "config.json")),
        "set_with_other_suffix": _set([("model.bin", 3)], files=("model.bin",)),
        "set_file_missing": _set(
            _THREE[:2], Refusal(NotReady, ("shard set incomplete", "s1.hdf5", "2 of 3")), ("s0.h5", "s1.hdf5", "s2.h5")
        ),
        "set_file_extra": _set(
            [*_THREE, ("s9.h5", 7)], Refusal(GeometryError, ("s9.h5", "beside")), ("s0.h5", "s1.hdf5", "s2.h5")
        ),
        "set_of_two_steps": _set(
            [*_THREE, ("s3.h5", 8)], Refusal(CorruptInput, ("step 8", "s3.h5", "step 7", "s0.h5"))
        ),
        "set_one_without_step": _set(
            [*_THREE, ("s3.h5", None)], Refusal(CorruptInput, ("step None", "s3.h5", "step 7"))
        ),
        "set_empty": _set([], Refusal(NotReady, ("shard set incomplete", "*.h5"))),
        "set_empty_as_asked": _set([], files=()),
        "set_one_is_no_shard": _set(_THREE, Refusal(CorruptInput, ("not an HDF5 file", "s9.h5")), beside=("s9.h5",)),
    }
)


def _twice(same: bool) -> Callable[[Path], SetCase]:
    """Two ranks publish one tensor: the inventories are sound, whether the bytes agree is for the layout to ask."""

    def build(directory: Path) -> SetCase:
        directory.mkdir()
        shard(directory / "s0.h5", 1, "norm/w")
        shard(directory / "s1.h5", 1, "norm/w", 61 if same else 62)
        return SetCase(directory, ("s0.h5", "s1.h5"), step=1)

    return build


SETS.update({"set_tensor_twice_equal": _twice(True), "set_tensor_twice_different": _twice(False)})


def _missing(directory: Path) -> SetCase:
    return SetCase(directory, refused=Refusal(NotReady, ("listing checkpoint", "ENOENT")))


SETS["set_no_directory"] = _missing
