"""Archives: the same bytes from the same files, and nothing restored that was not verified."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile

import pytest

from recorder.archive import find_manifests, pack_archive, restore_archive, restore_archives
from recorder.errors import DamagedError, UsageError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "evidence"
    (folder / "episode-0000").mkdir(parents=True)
    (folder / "episode-0000" / "transitions.jsonl").write_bytes(b'{"decision":0}\n' * 50)
    (folder / "notes.txt").write_bytes(b"two words\n")
    return folder


@pytest.fixture
def manifest(source, tmp_path):
    return pack_archive(source, tmp_path / "evidence.tar.gz")


def rebuilt(manifest, members, **changes):
    """The archive with other members, and a manifest whose whole digest fits it."""
    document = json.loads(manifest.read_bytes())
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data) if data is not None else None)
    archive = manifest.parent / document["archive"]
    archive.write_bytes(packed.getvalue())
    document |= {"sha256": hashlib.sha256(packed.getvalue()).hexdigest(), **changes}
    manifest.write_text(json.dumps(document), encoding="utf-8")
    return manifest


def true_members(manifest):
    document = json.loads(manifest.read_bytes())
    with tarfile.open(manifest.parent / document["archive"]) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def test_what_was_packed_is_restored_byte_for_byte(source, manifest, tmp_path):
    out = tmp_path / "deep" / "restored"
    restore_archive(manifest, out)
    for path in source.rglob("*"):
        copy = out / "evidence" / path.relative_to(source)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()


def test_packing_twice_gives_the_same_bytes_whatever_the_times_and_modes(source, manifest, tmp_path):
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    again = pack_archive(source, tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == (tmp_path / "evidence.tar.gz").read_bytes()
    assert json.loads(again.read_bytes())["files"] == json.loads(manifest.read_bytes())["files"]


def test_an_existing_destination_is_refused_and_left_alone(manifest, tmp_path):
    (tmp_path / "restored").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        restore_archive(manifest, tmp_path / "restored")
    assert list((tmp_path / "restored").iterdir()) == []


def test_every_flipped_bit_of_the_archive_is_refused_before_anything_is_written(manifest, tmp_path):
    archive = tmp_path / "evidence.tar.gz"
    honest = archive.read_bytes()
    for position in range(0, len(honest), 7):
        changed = bytearray(honest)
        changed[position] ^= 1 << (position % 8)
        assert bytes(changed) != honest
        archive.write_bytes(changed)
        with pytest.raises(DamagedError, match="SHA-256"):
            restore_archive(manifest, tmp_path / "restored")
        assert not (tmp_path / "restored").exists()


def linked(kind, target):
    member = tarfile.TarInfo("evidence/notes.txt")
    member.type, member.linkname = kind, target
    return member


ATTACKS = {
    "a member is missing": lambda members: members[:-1],
    "a member stands twice": lambda members: [*members, members[0]],
    "a member is extra": lambda members: [*members, (tarfile.TarInfo("evidence/extra"), b"")],
    "a member's bytes differ": lambda members: [
        *members[:-1],
        (members[-1][0], bytes(byte ^ 1 for byte in members[-1][1])),
    ],
    "a member escapes": lambda members: [*members[:-1], (tarfile.TarInfo("../notes.txt"), b"")],
    "a member is absolute": lambda members: [*members[:-1], (tarfile.TarInfo("/notes.txt"), b"")],
    "a member is a symlink": lambda members: [*members[:-1], (linked(tarfile.SYMTYPE, "/etc/passwd"), None)],
    "a member is a hard link": lambda members: [*members[:-1], (linked(tarfile.LNKTYPE, "/etc/passwd"), None)],
    "a member is a device": lambda members: [*members[:-1], (linked(tarfile.CHRTYPE, ""), None)],
    "a member is a fifo": lambda members: [*members[:-1], (linked(tarfile.FIFOTYPE, ""), None)],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bad_member_is_refused_though_the_whole_digest_fits(manifest, tmp_path, attack):
    rebuilt(manifest, ATTACKS[attack](true_members(manifest)))
    with pytest.raises(DamagedError):
        restore_archive(manifest, tmp_path / "restored")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence", "evidence.manifest.json", "evidence.tar.gz"]


MANIFEST_FAULTS = {
    "archive outside": {"archive": "../evidence.tar.gz"},
    "archive absolute": {"archive": "/tmp/evidence.tar.gz"},
    "archive of another type": {"archive": 7},
    "other kind": {"kind": "something-else"},
    "wrong count": {"file_count": 99},
    "wrong size": {"uncompressed_bytes": -1},
    "no files": {"files": None},
    "escaping path": {"files": [{"path": "a/../../b", "bytes": 0, "sha256": "0" * 64}]},
    "drive letter": {"files": [{"path": "C:/b", "bytes": 0, "sha256": "0" * 64}]},
    "backslash": {"files": [{"path": "a\\b", "bytes": 0, "sha256": "0" * 64}]},
    "case twins": {"files": [{"path": name, "bytes": 0, "sha256": "0" * 64} for name in ("a/B", "a/b")]},
    "negative bytes": {"files": [{"path": "a", "bytes": -1, "sha256": "0" * 64}]},
    "bytes as text": {"files": [{"path": "a", "bytes": "1", "sha256": "0" * 64}]},
}


@pytest.mark.parametrize("fault", MANIFEST_FAULTS)
def test_a_manifest_is_not_trusted(manifest, tmp_path, fault):
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document | MANIFEST_FAULTS[fault]), encoding="utf-8")
    with pytest.raises(DamagedError, match="manifest"):
        restore_archive(manifest, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_symlink_in_the_source_is_refused_by_name(source, tmp_path):
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="link"):
        pack_archive(source, tmp_path / "other.tar.gz")
    assert not (tmp_path / "other.tar.gz").exists()


def test_a_missing_archive_names_the_next_step(manifest, tmp_path):
    (tmp_path / "evidence.tar.gz").unlink()
    with pytest.raises(UsageError, match="git lfs pull"):
        restore_archive(manifest, tmp_path / "restored")


def test_archives_are_restored_side_by_side_and_only_if_all_are_sound(manifest, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "note.txt").write_bytes(b"a note")
    second = pack_archive(other, tmp_path / "other.tar.gz")
    assert find_manifests(tmp_path) == [manifest, second]
    documents = restore_archives([manifest, second], tmp_path / "restored")
    assert [document["archive"] for document in documents] == ["evidence.tar.gz", "other.tar.gz"]
    assert (tmp_path / "restored" / "other" / "note.txt").read_bytes() == b"a note"
    assert (tmp_path / "restored" / "evidence").is_dir()
    archive = tmp_path / "other.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedError, match=r"other\.tar\.gz has SHA-256"):
        restore_archives([manifest, second], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_archives_that_hold_the_same_folder_are_refused_together(manifest, tmp_path):
    with pytest.raises(UsageError, match="restore them apart"):
        restore_archives([manifest, shutil.copy(manifest, tmp_path / "copy.manifest.json")], tmp_path / "restored")


def test_a_folder_without_archives_says_so(tmp_path):
    with pytest.raises(UsageError, match="--manifest"):
        find_manifests(tmp_path)


@pytest.mark.parametrize("name", ["NOTES.TXT", "with:colon", "trailing."])
def test_what_could_not_be_restored_is_not_packed_and_leaves_no_half_archive(source, tmp_path, name):
    (source / name).write_bytes(b"x")
    with pytest.raises(UsageError, match="cannot be packed"):
        pack_archive(source, tmp_path / "other.tar.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["evidence"]


def test_nothing_is_restored_into_an_episode(manifest, tmp_path):
    (tmp_path / "episode").mkdir()
    (tmp_path / "episode" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(UsageError, match="never added to"):
        restore_archive(manifest, tmp_path / "episode" / "inside")
