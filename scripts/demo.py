"""The main job in a minute: restore evidence, replay it, then change one value and see it caught.

Runs the installed commands as a person would, in a fresh folder `demo/`, and checks their exit codes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from recorder.reading import digest_file
from recorder.records import digest_of, encode_document

DEMO = Path("demo")
EPISODE = DEMO / "restored" / "first-episodes" / "push-t" / "episode-0000"
DECISION = 41
DIVERGED, DAMAGED = 1, 3

# Under the Python of the recording this flag changes nothing; under a newer one the verdict says so.
REPLAY = ["replay", "--allow-other-versions"]


def main() -> int:
    """Run the demo; 0 if everything, the caught change included, went as it should."""
    shutil.rmtree(DEMO, ignore_errors=True)
    run("restore_experiments", "--out", str(DEMO / "restored"))
    run(*REPLAY, "--episode", str(EPISODE), "--video", "--out", str(DEMO / "replayed"))
    run("inspect-step", "--episode", str(EPISODE), "--decision", str(DECISION))
    edited = edit_one_reward()
    run(*REPLAY, "--episode", str(edited), "--out", str(DEMO / "replayed-edited"), expected=DAMAGED)
    say("Caught by its digest, and by the replay. Now the same edit by someone who computes every digest anew.")
    redo_digests(edited)
    run(*REPLAY, "--episode", str(edited), "--out", str(DEMO / "replayed-careful"), expected=DIVERGED)
    say(f"Caught by the replay alone. The video of the honest episode is {DEMO / 'replayed' / 'replay.mp4'}")
    return 0


def edit_one_reward() -> Path:
    """Copy the episode and raise one recorded reward by one percent."""
    edited = DEMO / "edited" / EPISODE.name
    shutil.copytree(EPISODE, edited)
    path = edited / "transitions.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(lines[DECISION])
    before = row["reward"]["value"]
    row["reward"]["value"] = before * 0.99
    lines[DECISION] = json.dumps(row, separators=(",", ":")) + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    say(f"Now someone improves the reward of decision {DECISION} from {before} to {row['reward']['value']} in a copy.")
    return edited


def redo_digests(episode: Path) -> None:
    """Let the summary answer for the edited file, as a careful forger would."""
    path = episode / "summary.json"
    summary = json.loads(path.read_bytes())
    summary["files"]["transitions.jsonl"] = digest_file(episode / "transitions.jsonl")
    path.write_bytes(encode_document({**summary, "digest": digest_of(summary)}))


def run(*command: str, expected: int = 0) -> None:
    """Run a command in the open and stop the demo if it ends otherwise than it should."""
    say(f"$ {' '.join(command)}")
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - the commands above
    say(f"(exit code {code})")
    if code != expected:
        sys.exit(f"demo: expected exit code {expected}, found {code}")


def say(text: str) -> None:
    """A line of the demo's own."""
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
