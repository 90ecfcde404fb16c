"""The commands `record` and `restore_experiments`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recorder.archive import find_newest_manifest, restore_archive
from recorder.command import run_command, say, whole_number
from recorder.errors import CannotRunError, RecorderError, UsageError
from recorder.policies import import_from_here, make_policy
from recorder.rebuild import build_environment, make_environment
from recorder.storage import require_new_folder
from recorder.wrappers import RecordEpisode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium

    from recorder.policies import Policy
    from recorder.records import Row

# How often the progress bar is told, in decisions.
PROGRESS_STRIDE = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """`record`: make evidence."""
    parser = argparse.ArgumentParser(prog="record", description="Record episodes of an environment as evidence.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_play(commands.add_parser("play", help="play an environment with a policy and record every episode"))
    parsed = parser.parse_args(arguments)
    return run_command(
        lambda: _play(parsed),
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
        "--manifest", type=Path, metavar="FILE", help="the archive's manifest (default: the newest in experiments/)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parsed = parser.parse_args(arguments)
    return run_command(lambda: _restore(parsed), interrupted="nothing was restored")


def _add_play(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--env", metavar="ID", help="a registered environment, such as CartPole-v1")
    source.add_argument("--factory", metavar="MODULE:FUNCTION", help="a function that builds the environment")
    parser.add_argument("--env-kwargs", type=_json_object, default={}, metavar="JSON", help="its keyword arguments")
    parser.add_argument("--policy", default="random", metavar="NAME", help="random (default), or module:function")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the first episode (default 0)")
    parser.add_argument("--decisions", type=_positive, required=True, metavar="N", help="decisions in all")
    parser.add_argument("--episodes", type=_positive, metavar="N", help="stop after so many episodes")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the episodes; must not exist"
    )
    parser.add_argument("--rgb", action="store_true", help="render every raw frame and record its SHA-256")
    parser.add_argument(
        "--ram",
        default="auto",
        metavar="SOURCE",
        help="state bytes: auto (default), none, numpy:ATTRIBUTE, pymunk:ATTRIBUTE or module:function",
    )
    parser.add_argument("--info", default="", metavar="KEYS", help="info keys to record, separated by commas")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _play(parsed: argparse.Namespace) -> int:
    require_new_folder(parsed.out)
    if parsed.factory is not None and not parsed.factory.partition(":")[2]:
        message = f"--factory {parsed.factory} names no function: write it as module:function"
        raise UsageError(message)
    env = _make_played_environment(parsed)
    try:
        policy = make_policy(parsed.policy, env, parsed.seed)
        recorder = RecordEpisode(
            env,
            parsed.out,
            factory=parsed.factory,
            factory_kwargs=_environment_kwargs(parsed) if parsed.factory else None,
            ram=None if parsed.ram == "none" else parsed.ram,
            rgb=parsed.rgb or None,
            info_keys=[key for key in parsed.info.split(",") if key],
            policy={"name": parsed.policy, "run_seed": parsed.seed},
            rebuild=True,
        )
    except BaseException:
        env.close()
        raise
    try:
        with recorder:
            episodes = _play_episodes(recorder, policy, parsed)
    except (OSError, RecorderError):
        say(_describe_rest(recorder))
        raise
    except Exception as error:
        raise CannotRunError(_describe_failure(error, recorder)) from error
    _report_episodes(episodes, parsed)
    return 0


def _play_episodes(recorder: RecordEpisode, policy: Policy, parsed: argparse.Namespace) -> list[Row]:
    episodes: list[Row] = []
    left = parsed.decisions
    console = Console(stderr=True)
    columns = (
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("decisions"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("recording", total=parsed.decisions)
        while left and (parsed.episodes is None or len(episodes) < parsed.episodes):
            recorder.limit_decisions(left)
            observation, _ = recorder.reset(seed=None if episodes else parsed.seed)
            done, total_reward, decisions = False, 0.0, 0
            while not done and decisions < left:
                observation, reward, terminated, truncated, _ = recorder.step(policy(observation))
                done = terminated or truncated
                decisions += 1
                total_reward += float(reward)
                if decisions % PROGRESS_STRIDE == 0:
                    progress.update(task, completed=parsed.decisions - left + decisions)
            recorder.end_episode()
            left -= decisions
            progress.update(task, completed=parsed.decisions - left)
            reason = ("terminated" if terminated else "truncated") if done else "decision_limit"
            episodes.append(
                {
                    "episode": str(recorder.episode_folder),
                    "decisions": decisions,
                    "return": total_reward,
                    "end_reason": reason,
                }
            )
    return episodes


def _describe_failure(error: Exception, recorder: RecordEpisode) -> str:
    """Where the code of the environment or the policy raised, in one sentence, and what is kept."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno} in {last.name}"
    return f"the environment or the policy raised {type(error).__name__}: {error} ({where}); {_describe_rest(recorder)}"


def _describe_rest(recorder: RecordEpisode) -> str:
    folder = recorder.episode_folder
    return "nothing was recorded" if folder is None else f"the decisions before it are kept in {folder} and verify"


def _report_episodes(episodes: list[Row], parsed: argparse.Namespace) -> None:
    if parsed.json:
        sys.stdout.write(json.dumps({"out": str(parsed.out), "episodes": episodes}) + "\n")
        return
    decisions = sum(episode["decisions"] for episode in episodes)
    word = "episode" if len(episodes) == 1 else "episodes"
    sys.stdout.write(f"recorded {len(episodes)} {word}, {decisions} decisions, in {parsed.out}\n")
    trust = f" --trust {parsed.factory.partition(':')[0]}" if parsed.factory else ""
    sys.stdout.write(f"verify the first with: replay --episode {episodes[0]['episode']}{trust}\n")


def _restore(parsed: argparse.Namespace) -> int:
    manifest = parsed.manifest
    if manifest is None:
        manifest = find_newest_manifest(Path("experiments"))
        say(f"archive: {manifest} (the newest; name another with --manifest)")
    document = restore_archive(manifest, parsed.out)
    result = {"out": str(parsed.out), "files": document["file_count"], "bytes": document["uncompressed_bytes"]}
    if parsed.json:
        sys.stdout.write(json.dumps({"verdict": "verified", **result, "sha256": document["sha256"]}) + "\n")
    else:
        sys.stdout.write(
            f"verified {document['archive']} (SHA-256 {document['sha256']}) and its {result['files']} members, "
            f"restored {result['bytes']} bytes to {parsed.out}\n"
        )
    return 0


def _make_played_environment(parsed: argparse.Namespace) -> gymnasium.Env[Any, Any]:
    import_from_here()
    kwargs = _environment_kwargs(parsed)
    if parsed.env is not None:
        return make_environment(parsed.env, **kwargs)
    described = {"factory": {"entry_point": parsed.factory, "kwargs": {"dict": kwargs}}}
    return build_environment(described, is_trusted=lambda _: True)


def _environment_kwargs(parsed: argparse.Namespace) -> dict[str, Any]:
    return {**parsed.env_kwargs, **({"render_mode": "rgb_array"} if parsed.rgb else {})}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        message = f"must be a JSON object, such as '{{\"gravity\": 9.8}}' ({error})"
        raise argparse.ArgumentTypeError(message) from error
    if not isinstance(value, dict):
        message = "must be a JSON object"
        raise argparse.ArgumentTypeError(message)
    return value


def _seed(text: str) -> int:
    return whole_number(text, at_least=0)


def _positive(text: str) -> int:
    return whole_number(text, at_least=1)


if __name__ == "__main__":
    sys.exit(main())
