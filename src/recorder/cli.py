"""The commands `record` and `restore_experiments`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from recorder.archive import find_manifests, restore_archives
from recorder.command import run_command
from recorder.game_check import add_games, run_games
from recorder.playing import add_play, run_play

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """`record`: make evidence."""
    parser = argparse.ArgumentParser(prog="record", description="Record episodes of an environment as evidence.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_play(commands.add_parser("play", help="play an environment with a policy and record every episode"))
    add_games(commands.add_parser("games", help="list the Atari games, or record and replay each (--check)"))
    parsed = parser.parse_args(arguments)
    if parsed.command == "games":
        return run_command(lambda: run_games(parsed), interrupted="not every game was checked")
    return run_command(
        lambda: run_play(parsed),
        interrupted=f"what was recorded so far in {parsed.out} is a prefix that `replay` verifies",
    )


def restore_main(arguments: Sequence[str] | None = None) -> int:
    """`restore_experiments`: verify an archive, then extract it."""
    parser = argparse.ArgumentParser(
        prog="restore_experiments",
        description="Verify an archive by SHA-256, whole and member by member, then extract it.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="destination; must not exist")
    parser.add_argument(
        "--manifest",
        type=Path,
        action="append",
        metavar="FILE",
        help="an archive's manifest; may be repeated (default: every archive in experiments/)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parsed = parser.parse_args(arguments)
    return run_command(lambda: _restore(parsed), interrupted="nothing was restored")


def _restore(parsed: argparse.Namespace) -> int:
    manifests = parsed.manifest or find_manifests(Path("experiments"))
    documents = restore_archives(manifests, parsed.out)
    restored = [
        {
            "archive": document["archive"],
            "sha256": document["sha256"],
            "files": document["file_count"],
            "bytes": document["uncompressed_bytes"],
        }
        for document in documents
    ]
    if parsed.json:
        sys.stdout.write(json.dumps({"verdict": "verified", "out": str(parsed.out), "archives": restored}) + "\n")
        return 0
    for row in restored:
        sys.stdout.write(
            f"verified {row['archive']} (SHA-256 {row['sha256']}) and its {row['files']} members, "
            f"restored {row['bytes']} bytes to {parsed.out}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
