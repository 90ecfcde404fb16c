"""The command `record play`: an environment, a policy, and every episode of them recorded."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recorder.atari import NAMESPACE, quiet_roms
from recorder.command import open_progress, say, whole_number
from recorder.errors import CannotRunError, RecorderError, UsageError
from recorder.games import GameSettings, make_game
from recorder.holding import HoldAction
from recorder.policies import import_from_here, make_policy
from recorder.pong import GAME
from recorder.pong_objects import ObserveObjects
from recorder.pong_play import KIND, PongSettings, record_pong
from recorder.pong_policies import RECORDED_NAMES, make_pong_policy
from recorder.rebuild import build_environment, make_environment
from recorder.storage import require_new_folder
from recorder.wrappers import RecordEpisode

if TYPE_CHECKING:
    import gymnasium

    from recorder.model_play import ModelRun
    from recorder.policies import Policy
    from recorder.pong_policies import PongPolicy
    from recorder.records import Row

# Settings that only an Atari emulator has.
ATARI_OPTIONS = ("sticky", "mode", "difficulty", "full_action_space", "observe", "track", "layout")

# How often the progress bar is told, in decisions.
PROGRESS_STRIDE = 256


def add_play(parser: argparse.ArgumentParser) -> None:
    """The arguments of `record play`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--env", metavar="ID", help="a registered environment, such as CartPole-v1")
    source.add_argument("--factory", metavar="MODULE:FUNCTION", help="a function that builds the environment")
    parser.add_argument("--env-kwargs", type=_json_object, default={}, metavar="JSON", help="its keyword arguments")
    parser.add_argument(
        "--policy",
        default="random",
        metavar="NAME",
        help="random (default), or module:function; with --track objects also track-2px, track-4px or intercept",
    )
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
    _add_model(parser.add_argument_group("asking a model over HTTP (extra `http`)"))
    _add_holding(parser.add_argument_group("holding an action"))
    _add_atari(parser.add_argument_group("Atari games (--env ALE/...)"))


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="ask this model before each decision, instead of --policy")
    group.add_argument("--base-url", metavar="URL", help="of its server, such as http://127.0.0.1:8000/v1")
    group.add_argument(
        "--protocol",
        choices=("chat", "decisions"),
        default="chat",
        help="OpenAI-compatible chat completions (default), or questions in and probabilities out",
    )
    group.add_argument("--program", type=Path, metavar="FILE", help="question program: what is asked, and the actions")
    group.add_argument(
        "--max-api-calls", type=_positive, metavar="N", help="hard cap on HTTP attempts, retries included"
    )
    group.add_argument("--response-model", metavar="NAME", help="the model that responses must name (default: --model)")
    group.add_argument("--api-key-env", metavar="VARIABLE", help="environment variable that holds the key")
    group.add_argument(
        "--secret-env",
        action="append",
        default=[],
        metavar="VARIABLE",
        help="further secrets to keep out of every file",
    )


def _add_holding(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hold", type=_positive, metavar="N", help="raw frames a decision (default: 4 for Atari games)")
    group.add_argument(
        "--noop-max",
        type=_index,
        metavar="N",
        help="reset no-ops: up to N, drawn from the seed (default 0; 30 with --track)",
    )


def _add_atari(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sticky", type=float, metavar="P", help="chance at each raw frame that the last action repeats (default 0.25)"
    )
    group.add_argument("--mode", type=_index, metavar="N", help="game mode (default: the emulator's)")
    group.add_argument("--difficulty", type=_index, metavar="N", help="difficulty (default: the emulator's)")
    group.add_argument("--full-action-space", action="store_true", default=None, help="all 18 actions")
    group.add_argument(
        "--observe", choices=("ram", "rgb", "grayscale", "vision"), help="what the policy sees (default: ram)"
    )
    group.add_argument(
        "--track", choices=("objects",), help=f"{GAME}: the policy sees boxes and velocities of the objects"
    )
    group.add_argument("--layout", choices=(KIND,), help="write the historical layout of Pong's object track instead")


def run_play(parsed: argparse.Namespace) -> int:
    """`record play`: play an environment with a policy and record every episode."""
    require_new_folder(parsed.out)
    if parsed.env is not None:
        parsed.env = parsed.env.removeprefix("ale_py:")  # Gymnasium's way of naming a module to import first
    _require_sensible(parsed)
    if parsed.layout is not None:
        return _play_historical(parsed)
    if parsed.factory is not None and not parsed.factory.partition(":")[2]:
        message = f"--factory {parsed.factory} names no function: write it as module:function"
        raise UsageError(message)
    with quiet_roms():
        episodes = _record_episodes(parsed)
    _report_episodes(episodes, parsed)
    return 0


def _record_episodes(parsed: argparse.Namespace) -> list[Row]:
    env = _make_played_environment(parsed)
    run: ModelRun | None = None
    try:
        run = _open_model(parsed, env)
        policy: Policy = _make_policy(parsed, env) if run is None else run.policy
        recorder = RecordEpisode(
            env,
            parsed.out,
            factory=parsed.factory,
            factory_kwargs=_environment_kwargs(parsed) if parsed.factory else None,
            ram=None if parsed.ram == "none" else parsed.ram,
            rgb=env.render_mode == "rgb_array",
            info_keys=[key for key in parsed.info.split(",") if key],
            policy={"name": parsed.policy, "run_seed": parsed.seed} if run is None else run.description,
            rebuild=True,
            redact=(lambda value: value) if run is None else run.log.redactor.redact,
        )
    except BaseException:
        env.close()
        raise
    try:
        with recorder:
            return _play_episodes(recorder, policy, parsed)
    except RecorderError as error:
        say(_describe_rest(recorder))
        if run is None:
            raise
        raise CannotRunError(run.log.redactor.redact_text(str(error))) from None  # it may repeat what a model said
    except OSError:
        say(_describe_rest(recorder))
        raise
    except Exception as error:
        problem = _describe_failure(error, recorder)
        if run is None:
            raise CannotRunError(problem) from error
        raise CannotRunError(run.log.redactor.redact_text(problem)) from None
    finally:
        if run is not None:
            _report_ledger(run.close())


def _open_model(parsed: argparse.Namespace, env: gymnasium.Env[Any, Any]) -> ModelRun | None:
    if parsed.model is None:
        return None
    from recorder.model_play import open_model_run  # noqa: PLC0415 - httpx is optional

    return open_model_run(parsed, env)


def _report_ledger(totals: Row) -> None:
    statuses = ", ".join(f"{count} x {status}" for status, count in totals["statuses"].items())
    usage = ", ".join(f"{name} {value:g}" for name, value in totals["usage"].items())
    counts = f"{totals['attempts']} HTTP attempts ({statuses or 'none'}); {usage or 'no usage stated'}"
    say(f"{counts}; {totals['redacted_places']} places redacted")


def _require_sensible(parsed: argparse.Namespace) -> None:
    """Refuse combinations that would be ignored otherwise."""
    is_game = parsed.env is not None and parsed.env.startswith(NAMESPACE)
    given = [name for name in ATARI_OPTIONS if getattr(parsed, name) is not None]
    problem = None
    if given and not is_game:
        problem = f"--{given[0].replace('_', '-')} is for Atari games (--env {NAMESPACE}...)"
    elif parsed.observe == "vision" and parsed.track is None:
        problem = "--observe vision reads objects off the screen: add --track objects"
    elif parsed.track is not None and parsed.observe in {"rgb", "grayscale"}:
        problem = f"--track objects takes its boxes from ram or vision, not from --observe {parsed.observe}"
    elif parsed.model is not None and parsed.policy != "random":
        problem = "--model decides: leave out --policy"
    elif parsed.layout is not None:
        problem = _find_unknown_to_layout(parsed)
    if problem is not None:
        raise UsageError(problem)


def _find_unknown_to_layout(parsed: argparse.Namespace) -> str | None:
    """What was asked for and the historical layout has no place for, or None."""
    if parsed.env != GAME or parsed.track is None:
        return f"--layout {parsed.layout} holds the object track of Pong: use --env {GAME} --track objects"
    if parsed.policy not in RECORDED_NAMES:
        return f"--layout {parsed.layout} knows the policies {', '.join(RECORDED_NAMES)}, not {parsed.policy!r}"
    if parsed.frames is not None:
        return f"--layout {parsed.layout} has no limit of raw frames: use --decisions"
    if parsed.model is not None:
        return f"--layout {parsed.layout} is written for local policies: leave out --layout with --model"
    if parsed.episodes not in {None, 1}:
        return f"--layout {parsed.layout} holds one episode a folder: leave out --episodes"
    others = {"mode": parsed.mode, "difficulty": parsed.difficulty, "full-action-space": parsed.full_action_space}
    others |= {"env-kwargs": parsed.env_kwargs, "info": parsed.info, "ram": parsed.ram != "auto"}
    unknown = [name for name, value in others.items() if value]
    if parsed.rgb is False:
        unknown.append("no-rgb")
    return f"--layout {parsed.layout} has no place for --{unknown[0]}" if unknown else None


def _play_historical(parsed: argparse.Namespace) -> int:
    chosen = {"hold_frames": parsed.hold, "observe": parsed.observe}
    chosen |= {"sticky": parsed.sticky, "noop_max": parsed.noop_max}
    settings = PongSettings(**_without_defaults(chosen))
    with open_progress("recording", "decisions") as progress, quiet_roms():
        task = progress.add_task("", total=parsed.decisions)
        summary = record_pong(
            parsed.out,
            settings=settings,
            policy_name=parsed.policy,
            policy=make_pong_policy(parsed.policy, parsed.seed),
            seed=parsed.seed,
            max_decisions=parsed.decisions,
            point_limit=parsed.point_limit,
            on_decision=lambda number: progress.update(task, completed=number),
        )
    fields = ("decisions", "raw_frames", "reward", "end_reason")
    episode = {"episode": str(parsed.out), **{name: summary[name] for name in fields}}
    _report_episodes([episode], parsed)
    return 0


def _without_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


class _ObjectPolicy:
    """A policy over Pong's objects, with the prediction that belongs to the last action."""

    def __init__(self, policy: PongPolicy) -> None:
        self._policy = policy
        self.prediction: Row = {}

    def __call__(self, observation: Row) -> int:
        action, self.prediction = self._policy(observation)
        return action


def _make_policy(parsed: argparse.Namespace, env: gymnasium.Env[Any, Any]) -> Policy:
    if parsed.track is None or ":" in parsed.policy:
        return make_policy(parsed.policy, env, parsed.seed)
    return _ObjectPolicy(make_pong_policy(parsed.policy, parsed.seed))


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


def _make_played_environment(parsed: argparse.Namespace) -> gymnasium.Env[Any, Any]:
    import_from_here()
    if parsed.env is not None and parsed.env.startswith(NAMESPACE):
        return _make_played_game(parsed)
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
    chosen = {name: getattr(parsed, name) for name in ("sticky", "mode", "difficulty", "full_action_space", "noop_max")}
    chosen["hold_frames"] = parsed.hold
    if parsed.track is None:
        chosen["observe"] = parsed.observe
    elif parsed.noop_max is None:
        chosen["noop_max"] = PongSettings.noop_max
    settings = GameSettings(**_without_defaults(chosen))
    render_mode = "rgb_array" if parsed.rgb is not False else None
    env = make_game(parsed.env, settings, render_mode=render_mode, kwargs=parsed.env_kwargs)
    if parsed.track is None:
        return env
    return ObserveObjects(env, parsed.observe or "ram", sticky_probability=settings.sticky)


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
