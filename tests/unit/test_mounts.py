"""What a directory is on, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

from dcr_mpi.mounts import Mount, mount_of

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
25 22 0:23 / {folder} rw,nosuid - tmpfs tmpfs rw,size=1024k
26 25 0:24 / {folder}/with\\040room rw - tmpfs dcr rw,size=1024k,huge=within_size
27 22 0:25 / {folder}-beside rw - lustre fs@tcp:/x rw
28 22 0:26 / /elsewhere/\\377\x0c rw - tmpfs x rw,huge=never

29 25 0:27 / {folder}/a\\011tab rw - ramfs y rw
30 25 0:28 / {folder}/over rw - tmpfs z rw
31 30 0:29 / {folder}/over rw master:1 - ext4 /dev/sdb1 rw
34 1 8:1 / / rw - ext4 /dev/sda1 rw
32 25 0:30 / {folder}/fuse rw - fuse.x y rw,huge=1
33 25 0:31 / {folder}/twice rw - tmpfs y rw,huge=never,huge=always
"""


def test_the_innermost_mount_counts_and_huge_pages_are_told(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    here = tmp_path.resolve()
    table.write_text(MOUNTS.format(folder=here))
    assert mount_of(here / "with room" / "x", table) == Mount("tmpfs", "within_size")
    assert mount_of(here, table) == Mount("tmpfs")
    assert mount_of(here, table).in_memory
    assert mount_of(Path(f"{here}-beside/x"), table) == Mount("lustre")
    assert mount_of(here.parent, table) == Mount("ext4")
    assert not mount_of(here.parent, table).in_memory
    assert mount_of(here / "a\ttab", table) == Mount("ramfs")
    assert mount_of(here / "over" / "it", table) == Mount("ext4"), "which covers what was there"
    assert mount_of(here, table) == Mount("tmpfs"), "whatever is listed after it"
    assert mount_of(here / "fuse", table) == Mount("fuse.x")
    assert mount_of(here / "twice", table) == Mount("tmpfs", "always")


def test_a_machine_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("")
    assert mount_of(tmp_path, table) == Mount("unknown")
