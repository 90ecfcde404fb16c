"""The commands `record` and `restore_experiments`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recorder.archive import find_newest_manifest, restore_archive
from recorder.atari import NAMESPACE
from recorder.command import open_progress, run_command, say, whole_number
from recorder.errors import CannotRunError, RecorderError, UsageError
from recorder.games import GameSettings, make_game
from recorder.holding import HoldAction
from recorder.policies import import_from_here, make_policy
from recorder.rebuild import build_environment, make_environment
from recorder.storage import require_new_folder
from recorder.wrappers import RecordEpisode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium

    from recorder.policies import Policy
    from recorder.records import Row

# Settings that only an Atari emulator has.
ATARI_OPTIONS = ("sticky", "mode", "difficulty", "full_action_space", "observe")

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
    parser.add_argument("--seed", type=_index, default=0, metavar="N", help="seed of the first episode (default 0)")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--decisions", type=_positive, metavar="N", help="decisions in all")
    length.add_argument("--frames", type=_positive, metavar="N", help="raw frames in all")
    parser.add_argument("--episodes", type=_positive, metavar="N", help="stop after so many episodes")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the episodes; must not exist"
    )
    parser.add_argument(
        "--point-limit", type=_positive, metavar="N", help="end an episode with its Nth raw frame that has a reward"
    )
    parser.add_argument(
        "--rgb",
        action=argparse.BooleanOptionalAction,
        help="render every raw frame and record its SHA-256 (default: for Atari games only)",
    )
    parser.add_argument(
        "--ram",
        default="auto",
        metavar="SOURCE",
        help="state bytes: auto (default), none, numpy:ATTRIBUTE, pymunk:ATTRIBUTE or module:function",
    )
    parser.add_argument("--info", default="", metavar="KEYS", help="info keys to record, separated by commas")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_holding(parser.add_argument_group("holding an action"))
    _add_atari(parser.add_argument_group("Atari games (--env ALE/...)"))


def _add_holding(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hold", type=_positive, metavar="N", help="raw frames a decision (default: 4 for Atari games)")
    group.add_argument(
        "--noop-max", type=_index, metavar="N", help="reset no-ops: up to N, drawn from the seed (default 0)"
    )


def _add_atari(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sticky", type=float, metavar="P", help="chance at each raw frame that the last action repeats (default 0.25)"
    )
    group.add_argument("--mode", type=_index, metavar="N", help="game mode (default: the emulator's)")
    group.add_argument("--difficulty", type=_index, metavar="N", help="difficulty (default: the emulator's)")
    group.add_argument("--full-action-space", action="store_true", default=None, help="all 18 actions")
    group.add_argument("--observe", choices=("ram", "rgb", "grayscale"), help="what the policy sees (default: ram)")


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
            rgb=env.render_mode == "rgb_array",
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
    is_in_frames = parsed.frames is not None
    total = left = parsed.frames if is_in_frames else parsed.decisions
    with open_progress("recording", "raw frames" if is_in_frames else "decisions") as progress:
        task = progress.add_task("", total=total)
        while left > 0 and (parsed.episodes is None or len(episodes) < parsed.episodes):
            limit = {"raw_frames" if is_in_frames else "decisions": left}
            recorder.limit(**limit, points=parsed.point_limit)
            observation, _ = recorder.reset(seed=None if episodes else parsed.seed)
            done = False
            while not done and recorder.reached_limit is None:
                action = policy(observation)
                prediction = getattr(policy, "prediction", None)
                if prediction is not None:
                    recorder.predict(prediction)
                observation, _, terminated, truncated, _ = recorder.step(action)
                done = terminated or truncated
                if recorder.decisions % PROGRESS_STRIDE == 0:
                    used = recorder.raw_frames if is_in_frames else recorder.decisions
                    progress.update(task, completed=total - left + used)
            recorder.end_episode()
            summary: Row = recorder.summary or {}
            left -= summary["raw_frames" if is_in_frames else "decisions"]
            progress.update(task, completed=total - left)
            fields = ("decisions", "raw_frames", "return", "end_reason")
            episodes.append({"episode": str(recorder.episode_folder), **{name: summary[name] for name in fields}})
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
    decisions, raw_frames = (sum(episode[name] for episode in episodes) for name in ("decisions", "raw_frames"))
    word = "episode" if len(episodes) == 1 else "episodes"
    lasted = f"{decisions} decisions" + (f" of {raw_frames} raw frames" if raw_frames != decisions else "")
    sys.stdout.write(f"recorded {len(episodes)} {word}, {lasted}, in {parsed.out}\n")
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
    if parsed.env is not None and parsed.env.startswith(NAMESPACE):
        return _make_played_game(parsed)
    given = [name for name in ATARI_OPTIONS if getattr(parsed, name) is not None]
    if given:
        message = f"--{given[0].replace('_', '-')} is for Atari games (--env {NAMESPACE}...)"
        raise UsageError(message)
    kwargs = _environment_kwargs(parsed)
    if parsed.env is not None:
        env = make_environment(parsed.env, **kwargs)
    else:
        described = {"factory": {"entry_point": parsed.factory, "kwargs": {"dict": kwargs}}}
        env = build_environment(described, is_trusted=lambda _: True)
    if parsed.hold is None and parsed.noop_max is None:
        return env
    return HoldAction(env, parsed.hold or 1, noop_max=parsed.noop_max or 0)


def _make_played_game(parsed: argparse.Namespace) -> gymnasium.Env[Any, Any]:
    chosen = {name: getattr(parsed, name) for name in (*ATARI_OPTIONS, "noop_max")}
    chosen["hold_frames"] = parsed.hold
    settings = GameSettings(**{name: value for name, value in chosen.items() if value is not None})
    render_mode = "rgb_array" if parsed.rgb is not False else None
    return make_game(parsed.env, settings, render_mode=render_mode, kwargs=parsed.env_kwargs)


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


def _index(text: str) -> int:
    return whole_number(text, at_least=0)


def _positive(text: str) -> int:
    return whole_number(text, at_least=1)


if __name__ == "__main__":
    sys.exit(main())
