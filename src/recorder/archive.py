"""Evidence packed into a deterministic archive, and restored only after every byte was verified.

An archive is a `.tar.gz` and beside it `NAME.manifest.json`: the SHA-256 of the whole file, and path, size and
SHA-256 of every member. Restoring checks the manifest, the whole, then each member, and only then writes: into
a temporary folder beside the destination, hashed again as it lands, renamed at the end.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from recorder.errors import DamagedError, UsageError
from recorder.reading import CHUNK_BYTES, digest_file
from recorder.records import Row, encode_document, read_strict_json
from recorder.storage import require_new_folder, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

KIND = "experiment-archive-v1"
MANIFEST_SUFFIX = ".manifest.json"
ARCHIVE_SUFFIX = ".tar.gz"

# SHA-256 in hex.
DIGEST_DIGITS = 64


def pack_archive(source: Path, archive: Path) -> Path:
    """Pack a folder; the same files give the same bytes on every machine.

    Args:
        source: Folder whose regular files are packed, under the folder's own name.
        archive: The `.tar.gz` to write; must not exist.

    Returns:
        The manifest beside the archive.

    Raises:
        UsageError: Something exists already, or the source holds what is not a regular file.
    """
    manifest = _manifest_path(archive)
    for path in (archive, manifest):
        if path.exists():
            message = f"{path} exists already: choose another name or remove it"
            raise UsageError(message)
    files = [path for path in sorted(source.rglob("*")) if not path.is_dir() or path.is_symlink()]
    for path in files:
        if path.is_symlink() or not path.is_file():
            message = f"{path} is not a regular file: an archive holds nothing else"
            raise UsageError(message)
    members = [(str(PurePosixPath(source.resolve().name, *path.relative_to(source).parts)), path) for path in files]
    temporary = archive.with_name(f".{archive.name}.part")
    try:
        entries = _write_members(temporary, members)
        document = {
            "kind": KIND,
            "archive": archive.name,
            "sha256": digest_file(temporary)["sha256"],
            "file_count": len(entries),
            "uncompressed_bytes": sum(entry["bytes"] for entry in entries),
            "files": entries,
        }
        # What a restore would refuse is not packed.
        fault = _manifest_fault(document)
        if fault is not None:
            message = f"{source} cannot be packed: {fault}"
            raise UsageError(message)
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)
    write_atomically(manifest, encode_document(document))
    return manifest


def _write_members(target: Path, members: list[tuple[str, Path]]) -> list[Row]:
    """Write the archive's bytes; return the manifest's entries."""
    entries: list[Row] = []
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in members:
            facts = digest_file(path)
            with path.open("rb") as stream:
                tar.addfile(_plain_member(name, facts["bytes"]), stream)
            entries.append({"path": name, **facts})
    return entries


def restore_archive(manifest: Path, out: Path) -> Row:
    """Verify an archive and extract it; see `restore_archives`. Returns the manifest's content."""
    return restore_archives([manifest], out)[0]


def restore_archives(manifests: Sequence[Path], out: Path) -> list[Row]:
    """Verify archives, all of them, and then extract them side by side.

    Args:
        manifests: Their manifests; each archive lies beside its own.
        out: Destination folder; must not exist.

    Returns:
        The manifests' contents.

    Raises:
        UsageError: The destination exists, or a manifest or archive is not there.
        DamagedError: Anything is not as a manifest says; nothing was written then.
    """
    require_new_folder(out)
    documents = [_read_manifest(manifest) for manifest in manifests]
    _refuse_shared_paths(documents)
    with contextlib.ExitStack() as stack:
        opened = []
        for manifest, document in zip(manifests, documents, strict=True):
            archive = manifest.parent / document["archive"]
            if not archive.is_file():
                message = f"{archive} is not there, though {manifest} names it: fetch it (perhaps with `git lfs pull`)"
                raise UsageError(message)
            # Opened once: the bytes that are verified are the bytes that are extracted.
            stream = stack.enter_context(archive.open("rb"))
            _verify_whole(stream, archive, document["sha256"])
            for _ in _verified_members(stream, archive, document, None):
                pass
            opened.append((stream, archive, document))
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
        try:
            for stream, archive, document in opened:
                for _ in _verified_members(stream, archive, document, temporary):
                    pass
            temporary.chmod(0o755)
            temporary.rename(out)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return documents


def find_manifests(folder: Path) -> list[Path]:
    """The manifests of all archives of a folder, by name.

    Raises:
        UsageError: There is none.
    """
    found = sorted(folder.glob(f"*{MANIFEST_SUFFIX}"))
    if not found:
        message = f"{folder} holds no archive: name one with --manifest FILE{MANIFEST_SUFFIX}"
        raise UsageError(message)
    return found


def _refuse_shared_paths(documents: Sequence[Row]) -> None:
    """Two archives must not write to one place, nor one's file be another's folder."""
    tops: dict[str, Row] = {}
    for document in documents:
        for top in {entry["path"].partition("/")[0].casefold() for entry in document["files"]}:
            if tops.setdefault(top, document) is not document:
                message = f"{tops[top]['archive']} and {document['archive']} both hold {top!r}: restore them apart"
                raise UsageError(message)


def _manifest_path(archive: Path) -> Path:
    if not archive.name.endswith(ARCHIVE_SUFFIX):
        message = f"{archive} must end in {ARCHIVE_SUFFIX}"
        raise UsageError(message)
    return archive.with_name(archive.name.removesuffix(ARCHIVE_SUFFIX) + MANIFEST_SUFFIX)


def _plain_member(name: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size_bytes, 0o644
    return member


def _read_manifest(path: Path) -> Row:
    if not path.is_file():
        message = f"{path} does not exist: name the archive's manifest, the file that ends in {MANIFEST_SUFFIX}"
        raise UsageError(message)
    document = read_strict_json(path.read_bytes(), where=str(path))
    fault = _manifest_fault(document)
    if fault is not None:
        message = f"{path} is not an archive manifest: {fault}"
        raise DamagedError(message)
    row: Row = document
    return row


def _manifest_fault(document: Any) -> str | None:  # noqa: ANN401, PLR0911 - a stranger's JSON
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return f"its kind is not {KIND}"
    name = document.get("archive")
    if not isinstance(name, str) or PurePosixPath(name).name != name or "\\" in name or name in {"", ".", ".."}:
        return f"archive {name!r} is not a plain file name"
    files = document.get("files")
    if not isinstance(files, list) or not _is_digest(document.get("sha256")):
        return "files or sha256 are missing"
    seen: set[str] = set()
    total_bytes = 0
    for entry in files:
        if not isinstance(entry, dict) or not _is_digest(entry.get("sha256")) or not _is_count(entry.get("bytes")):
            return f"the entry {str(entry)[:80]} needs path, bytes and sha256"
        fault = _path_fault(entry.get("path"))
        if fault is not None:
            return fault
        folded = entry["path"].casefold()
        if folded in seen:
            return f"{entry['path']!r} stands twice"
        seen.add(folded)
        total_bytes += entry["bytes"]
    if document.get("file_count") != len(files) or document.get("uncompressed_bytes") != total_bytes:
        return f"it lists {len(files)} files of {total_bytes} bytes but states other totals"
    return None


def _path_fault(path: Any) -> str | None:  # noqa: ANN401 - a stranger's JSON
    if not isinstance(path, str) or not path:
        return f"the path {path!r} is not text"
    parts = path.split("/")
    if not path.isprintable():
        return f"the path {path!r} holds characters that no file name should"
    is_unsafe = path.startswith("/") or "\\" in path or ":" in path or any(ord(letter) < ord(" ") for letter in path)
    if is_unsafe or any(part in {"", ".", ".."} or part != part.rstrip(". ") for part in parts):
        return f"the path {path!r} is not safe"
    return None


def _is_digest(value: Any) -> bool:  # noqa: ANN401 - a stranger's JSON
    return isinstance(value, str) and len(value) == DIGEST_DIGITS and set(value) <= set("0123456789abcdef")


def _is_count(value: Any) -> bool:  # noqa: ANN401 - a stranger's JSON
    return type(value) is int and value >= 0


def _verify_whole(stream: BinaryIO, archive: Path, stated: str) -> None:
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != stated:
        message = f"{archive} has SHA-256 {digest.hexdigest()}, its manifest says {stated}: fetch it again"
        raise DamagedError(message)


def _verified_members(stream: BinaryIO, archive: Path, document: Row, target: Path | None) -> Iterator[str]:
    """Each member's path after its bytes were verified, and written below `target` if there is one."""
    expected = {entry["path"]: entry for entry in document["files"]}
    stream.seek(0)
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as zipped, tarfile.open(fileobj=zipped, mode="r|") as tar:
            for member in tar:
                entry = expected.pop(member.name, None)
                if entry is None:
                    message = f"{archive} holds {member.name!r}, which its manifest does not list (or lists once)"
                    raise DamagedError(message)
                if not member.isreg() or member.size != entry["bytes"]:
                    message = f"{archive}: {member.name!r} is not a regular file of {entry['bytes']} bytes"
                    raise DamagedError(message)
                _copy_member(tar, member, entry, archive, target)
                yield member.name
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        message = f"{archive} cannot be unpacked: {error}"
        raise DamagedError(message) from error
    if expected:
        message = f"{archive} lacks {', '.join(sorted(expected)[:5])}, which its manifest lists"
        raise DamagedError(message)


def _copy_member(tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Row, archive: Path, target: Path | None) -> None:
    source = tar.extractfile(member)
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        sink = None
        if target is not None:
            path = target.joinpath(*member.name.split("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(path.open("xb"))
        while source is not None and (chunk := source.read(CHUNK_BYTES)):
            digest.update(chunk)
            if sink is not None:
                sink.write(chunk)
        if sink is not None:
            sink.flush()
            os.fsync(sink.fileno())
    if digest.hexdigest() != entry["sha256"]:
        message = f"{archive}: {member.name!r} has SHA-256 {digest.hexdigest()}, the manifest says {entry['sha256']}"
        raise DamagedError(message)
