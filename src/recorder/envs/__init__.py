"""Environments of this project, known to `gymnasium.make` once `recorder` is imported."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

_ENTRY_POINTS = {
    "recorder/CartPole-v1": "recorder.envs.cartpole:CartPoleEnv",
    "recorder/LewmPushT-v1": "recorder.envs.lewm_pusht:LewmPushTEnv",
}


def register_environments() -> None:
    """Register the environments that are not registered yet."""
    for env_id, entry_point in _ENTRY_POINTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point)
