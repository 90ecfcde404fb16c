"""Policies by name, and by `module:function` for everybody's own."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from recorder.errors import CannotRunError, UsageError
from recorder.wrappers import derive_seed

if TYPE_CHECKING:
    import gymnasium

Policy: TypeAlias = Callable[[Any], Any]

# Keeps the stream of actions apart from those of the environment's episodes.
POLICY_STREAM = 2**20


def make_policy(name: str, env: gymnasium.Env[Any, Any], seed: int) -> Policy:
    """A function from observation to action.

    Args:
        name: `random`, or `module:function`; the function is called with the environment and a seed and
            returns the policy. The current folder is searched as well.
        env: The environment that will be played.
        seed: Seed of the run; the policy gets one derived from it.

    Raises:
        UsageError: There is no such policy.
        CannotRunError: Its function raised.
    """
    policy_seed = derive_seed(seed, POLICY_STREAM)
    if name == "random":
        return _random_policy(env, policy_seed)
    module, _, function = name.partition(":")
    if not function:
        message = f"policy {name!r} is not known: use random, or module:function for your own"
        raise UsageError(message)
    import_from_here()
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        message = f"policy {name} cannot be imported: {error}"
        raise UsageError(message) from error
    try:
        policy: Policy = make(env, policy_seed)
    except Exception as error:
        message = f"policy {name} could not be made: {type(error).__name__}: {error} (it is called with env and seed)"
        raise CannotRunError(message) from error
    return policy


def import_from_here() -> None:
    """Let modules of the current folder be imported, where no installed one has their name."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def _random_policy(env: gymnasium.Env[Any, Any], seed: int) -> Policy:
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    return lambda _: space.sample()
