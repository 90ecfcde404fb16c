"""The recorded actions, decoded to what reached the environment."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from recorder.encoding import decode_value
from recorder.errors import DamagedError

if TYPE_CHECKING:
    from recorder.records import Row
    from replay.evidence import Evidence

# How an action stands in a line that no policy explained; the key is counted, so that no other can be meant.
_ACTION_KEY = b'"action":'
_UNPREDICTED_ACTION = b'"prediction":null,"action":'
_REWARD_KEY = b',"reward":'

# So many different actions that cannot be changed (numbers) are decoded only once.
PLAIN_ACTIONS = 1024


class ActionReader:
    """Reads the action of a transition's line, and the prediction that chose it."""

    def __init__(self, evidence: Evidence) -> None:
        """Nothing is read yet."""
        self._evidence = evidence
        self._plain_actions: dict[bytes, Any] = {}

    def read(self, line: bytes) -> tuple[Row | None, Any]:
        """The recorded prediction, if it is an object, and the recorded action.

        Where the action stands is clear in a line that names it once, and then the rest is not parsed: it is
        compared as bytes.

        Raises:
            DamagedError: The line holds none.
        """
        if line.count(_ACTION_KEY) == 1 and (start := line.find(_UNPREDICTED_ACTION)) >= 0:
            spelled = line[start + len(_UNPREDICTED_ACTION) : line.find(_REWARD_KEY, start)]
            if spelled in self._plain_actions:
                return None, self._plain_actions[spelled]
            with contextlib.suppress(orjson.JSONDecodeError, DamagedError):
                action = decode_value(orjson.loads(spelled), self._evidence.arrays)
                if isinstance(action, np.generic | int) and len(self._plain_actions) < PLAIN_ACTIONS:
                    self._plain_actions[spelled] = action  # cannot be changed, so it can be sent again
                return None, action
        try:
            recorded = orjson.loads(line)
            # Anything but an object breaks the schema, which comparing the line finds.
            prediction = recorded.get("prediction")
            action = decode_value(recorded["action"], self._evidence.arrays)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, DamagedError) as error:
            where = self._evidence.where(self._evidence.transitions, line)
            message = f"{where} holds no action that can be read: {type(error).__name__}: {error}"
            raise DamagedError(message) from error
        return prediction if isinstance(prediction, dict) else None, action
