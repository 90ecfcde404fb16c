"""Atari games as evidence needs them: one raw frame a step, actions held, and every registered game known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium

from recorder.atari import NAMESPACE, register_atari
from recorder.errors import CannotRunError, UsageError
from recorder.holding import HoldAction
from recorder.rebuild import make_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of an NTSC console; ale-py's own metadata says 30 for every game.
RAW_FRAME_HZ = 60.0

_VERSION = 5


@dataclass(frozen=True)
class GameSettings:
    """How a game is set up; the defaults are those of the published experiments.

    Attributes:
        hold_frames: Raw frames a decision.
        sticky: Probability, at each raw frame, that the emulator repeats the action of the frame before.
        noop_max: A reset is followed by 0 to so many no-ops, drawn from the seed.
        mode: Game mode; None takes the emulator's default.
        difficulty: Difficulty; None takes the emulator's default.
        full_action_space: Offer all 18 actions instead of the game's own.
        observe: What the policy sees.
    """

    hold_frames: int = 4
    sticky: float = 0.25
    noop_max: int = 0
    mode: int | None = None
    difficulty: int | None = None
    full_action_space: bool = False
    observe: Literal["ram", "rgb", "grayscale"] = "ram"


def make_game(
    env_id: str,
    settings: GameSettings | None = None,
    *,
    render_mode: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> HoldAction:
    """Build a game whose decisions last several raw frames.

    Args:
        env_id: A registered game, such as `ALE/Breakout-v5`.
        settings: How to set it up.
        render_mode: `rgb_array` for pictures.
        kwargs: Further keyword arguments of the environment, which go before the settings.

    Raises:
        MissingExtraError: ale-py is not installed.
        UsageError: A setting is out of its range.
        CannotRunError: There is no such game, or it has no such mode or difficulty.
    """
    settings = settings or GameSettings()
    sticky = (kwargs or {}).get("repeat_action_probability", settings.sticky)
    if not isinstance(sticky, int | float) or not 0.0 <= sticky <= 1.0:
        message = f"the sticky probability must be from 0 to 1, not {sticky!r}"
        raise UsageError(message)
    register_atari()
    require_game(env_id)
    chosen: dict[str, Any] = {
        "frameskip": 1,
        "repeat_action_probability": sticky,
        "full_action_space": settings.full_action_space,
        "mode": settings.mode,
        "difficulty": settings.difficulty,
        "obs_type": settings.observe,
        "disable_env_checker": True,  # 3 us a raw frame, to learn what is known of this environment
        **(kwargs or {}),
    }
    if render_mode is not None:
        chosen["render_mode"] = render_mode
    try:
        env = make_environment(env_id, **chosen)
    except (RuntimeError, UsageError) as error:
        raise _explain(env_id, chosen, error) from error
    return HoldAction(env, settings.hold_frames, noop_max=settings.noop_max, raw_frame_hz=RAW_FRAME_HZ)


def list_games() -> list[str]:
    """The single-agent games that ale-py registers, sorted.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    register_atari()
    namespace = NAMESPACE.removesuffix("/")
    specs = gymnasium.registry.values()
    return sorted(spec.id for spec in specs if spec.namespace == namespace and spec.version == _VERSION)


def require_game(env_id: str) -> None:
    """Raise unless a game is registered; the message names those with a similar name.

    Raises:
        CannotRunError: It is not.
    """
    spec = gymnasium.registry.get(env_id)
    if spec is not None and spec.namespace == NAMESPACE.removesuffix("/"):
        return
    wanted = env_id.removeprefix(NAMESPACE).partition("-")[0].lower()
    similar = [game for game in list_games() if wanted[:4] and wanted[:4] in game.lower()]
    hint = f"did you mean {' or '.join(similar[:3])}?" if similar else "`record games` lists them"
    message = f"there is no game {env_id!r}: {hint}"
    raise CannotRunError(message)


def _explain(env_id: str, chosen: Mapping[str, Any], error: Exception) -> CannotRunError | UsageError:
    """What the emulator refused, and what it would have taken."""
    ale: Any = make_environment(env_id).unwrapped
    modes, difficulties = ale.ale.getAvailableModes(), ale.ale.getAvailableDifficulties()
    if chosen["mode"] is not None and chosen["mode"] not in modes:
        return CannotRunError(f"{env_id} has no mode {chosen['mode']}: it has {_listed(modes)}")
    if chosen["difficulty"] is not None and chosen["difficulty"] not in difficulties:
        return CannotRunError(f"{env_id} has no difficulty {chosen['difficulty']}: it has {_listed(difficulties)}")
    if isinstance(error, UsageError):
        return error
    return CannotRunError(f"{env_id} cannot be built: {error}")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
