"""Question programs: what a model is asked before each decision, and how its answer becomes an action.

Both directions are pure: the request follows from the program and the observation, the prediction from the program and
the response, the action from the prediction. So a replay can prove each step without the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from recorder.errors import CannotRunError, UsageError
from recorder.exchanges import spell_json
from recorder.records import JsonValue, Row, read_strict_json, sha256_of_json

if TYPE_CHECKING:
    from pathlib import Path

Protocol: TypeAlias = Literal["decisions", "chat"]

SCHEMA_VERSION = "action-choice-1"
SELECTION_RULE = "most probable; of equals the model's choice, else the first of the program"

NAME_CHARACTERS = 100
GUIDANCE_CHARACTERS = 4000
MEANING_CHARACTERS = 500
MOST_ACTIONS = 64

# Where each protocol is spoken, below the base URL.
PATHS = {"decisions": "decisions", "chat": "chat/completions"}

# The one question of the decisions protocol.
QUESTION = "next_action"

# Probabilities are equal if they differ by less.
EQUAL_P = 1e-9

# How far a sum of probabilities may be from 1: as exact numbers, and for each of those rounded to two decimals.
EXACT_SUM = 1e-4
ROUNDED_EACH = 0.005
_ROUNDING = 1e-7

_CHAT_FORM = "Answer with the name of one action as `choice` and the probability of every action as `probabilities`."


class AnswerError(CannotRunError):
    """A model's answer cannot be used: no action follows from it, and none is made up."""


@dataclass(frozen=True)
class ProgramAction:
    """One action that a model can choose.

    Attributes:
        name: What the model calls it.
        action: What reaches the environment, as JSON.
        meaning: What the model is told of it.
    """

    name: str
    action: JsonValue
    meaning: str


@dataclass(frozen=True)
class ActionProgram:
    """Asks which action to take next.

    Attributes:
        name: Of the program.
        guidance: What the model is told.
        actions: What it can choose from.
    """

    name: str
    guidance: str
    actions: tuple[ProgramAction, ...]

    @classmethod
    def from_json(cls, document: JsonValue, *, where: str = "the program") -> ActionProgram:
        """A program from its JSON; what is not known is refused.

        Raises:
            UsageError: It is no program; the message names the field.
        """
        fields = _take_fields(document, ("schema_version", "name", "guidance", "actions"), where)
        if fields["schema_version"] != SCHEMA_VERSION:
            message = f"{where} has schema_version {fields['schema_version']!r}: {SCHEMA_VERSION!r} is known"
            raise UsageError(message)
        rows = fields["actions"]
        if not isinstance(rows, list) or not 1 < len(rows) <= MOST_ACTIONS:
            message = f"{where}: actions is a list of 2 to {MOST_ACTIONS} objects"
            raise UsageError(message)
        actions = []
        for number, row in enumerate(rows):
            place = f"{where}: actions[{number}]"
            given = _take_fields(row, ("name", "action", "meaning"), place)
            name = _take_text(given["name"], f"{place}.name", NAME_CHARACTERS)
            meaning = _take_text(given["meaning"], f"{place}.meaning", MEANING_CHARACTERS)
            actions.append(ProgramAction(name, given["action"], meaning))
        if len({action.name for action in actions}) < len(actions):
            message = f"{where}: two actions have one name"
            raise UsageError(message)
        return cls(
            _take_text(fields["name"], f"{where}: name", NAME_CHARACTERS),
            _take_text(fields["guidance"], f"{where}: guidance", GUIDANCE_CHARACTERS),
            tuple(actions),
        )

    @classmethod
    def read(cls, path: Path) -> ActionProgram:
        """A program from a file.

        Raises:
            UsageError: There is no such file, or it holds no program.
            DamagedError: It is not strict JSON.
        """
        if not path.is_file():
            message = f"{path} does not exist: name a file with a question program"
            raise UsageError(message)
        return cls.from_json(read_strict_json(path.read_bytes(), where=str(path)), where=str(path))

    def to_json(self) -> Row:
        """As a file and a manifest hold it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "guidance": self.guidance,
            "actions": [asdict(action) for action in self.actions],
        }

    @property
    def sha256(self) -> str:
        """SHA-256 of the program: whatever is changed in it changes this."""
        return sha256_of_json(self.to_json())

    def request(self, protocol: Protocol, model: str, observation: Any) -> Row:  # noqa: ANN401 - any observation
        """The JSON that is sent for an observation."""
        seen = describe_observation(observation)
        if protocol == "decisions":
            question = {
                "type": "choice",
                "instructions": self.guidance,
                "criteria": {action.name: action.meaning for action in self.actions},
            }
            return {"model": model, "state": {"observation": seen}, "questions": {QUESTION: question}}
        listed = "\n".join(f"- {action.name}: {action.meaning}" for action in self.actions)
        return {
            "model": model,
            "messages": [
                {"role": "system", "content": f"{self.guidance}\n\nActions:\n{listed}\n\n{_CHAT_FORM}"},
                {"role": "user", "content": json.dumps(seen, allow_nan=False)},
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "decision", "strict": True, "schema": self._answer_schema()},
            },
        }

    def decode(self, protocol: Protocol, response: JsonValue) -> Row:
        """The prediction that a response makes.

        Raises:
            AnswerError: The response is not what was asked for; the message says in what.
        """
        if not isinstance(response, dict):
            message = "the response is no JSON object"
            raise AnswerError(message)
        model = response.get("model")
        if not isinstance(model, str) or not model:
            message = f"the response names no model: {model!r}"
            raise AnswerError(message)
        answer = _find_decision(response) if protocol == "decisions" else _find_chat(response)
        reported = self._check_probabilities(answer.get("probabilities"))
        choice = answer.get("choice")
        if not isinstance(choice, str) or choice not in reported:
            message = f"the choice {choice!r} is none of the actions"
            raise AnswerError(message)
        total = math.fsum(reported.values())
        probabilities = {name: value / total for name, value in reported.items()}
        chosen = select(probabilities, choice)
        return {
            "kind": "action-choice",
            "program_sha256": self.sha256,
            "response_model": model,
            "probabilities": probabilities,
            "reported_probabilities": reported,
            "reported_choice": choice,
            "choice_matches_probabilities": chosen == choice,
            "chosen": chosen,
            "selection_rule": SELECTION_RULE,
            "usage": spell_json(response.get("usage")),
        }

    def action_of(self, prediction: Mapping[str, Any]) -> JsonValue:
        """The action that a prediction chose, as JSON.

        Raises:
            AnswerError: It chose none of the program's.
        """
        for action in self.actions:
            if action.name == prediction.get("chosen"):
                return action.action
        message = f"the prediction chose {prediction.get('chosen')!r}, which is none of the actions"
        raise AnswerError(message)

    def _answer_schema(self) -> Row:
        names = [action.name for action in self.actions]
        probabilities = {
            "type": "object",
            "properties": {name: {"type": "number"} for name in names},
            "required": names,
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": names}, "probabilities": probabilities},
            "required": ["choice", "probabilities"],
            "additionalProperties": False,
        }

    def _check_probabilities(self, given: JsonValue) -> dict[str, float]:
        names = [action.name for action in self.actions]
        if not isinstance(given, dict) or set(given) != set(names):
            found = sorted(given) if isinstance(given, dict) else given
            message = f"the probabilities are of {found}, not of {names}"
            raise AnswerError(message)
        for name, value in given.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= 1:
                message = f"the probability of {name!r} is {value!r}, no number from 0 to 1"
                raise AnswerError(message)
        reported = {name: float(given[name]) for name in names}
        is_rounded = all(abs(value - round(value, 2)) < _ROUNDING for value in reported.values())
        allowed = ROUNDED_EACH * len(names) + _ROUNDING if is_rounded else EXACT_SUM
        total = math.fsum(reported.values())
        if abs(total - 1) > allowed:
            message = f"the probabilities sum to {total:.6g}, farther from 1 than {allowed:.6g}"
            raise AnswerError(message)
        return reported


def select(probabilities: Mapping[str, float], choice: str) -> str:
    """The most probable name; of equals the stated choice, else the first."""
    most = max(probabilities.values())
    if probabilities[choice] >= most - EQUAL_P:
        return choice
    return next(name for name, value in probabilities.items() if value >= most - EQUAL_P)


def describe_observation(observation: Any) -> JsonValue:  # noqa: ANN401 - any observation
    """An observation as a model reads it: plain JSON, arrays as nested lists.

    Raises:
        UsageError: It holds what JSON cannot say.
    """
    if isinstance(observation, np.ndarray | np.generic):
        return describe_observation(observation.tolist())
    if isinstance(observation, Mapping):
        # By name, as a record has them: a replay makes the same text.
        return {key: describe_observation(observation[key]) for key in sorted(observation)}
    if isinstance(observation, Sequence) and not isinstance(observation, str | bytes):
        return [describe_observation(value) for value in observation]
    if isinstance(observation, float) and not math.isfinite(observation):
        return repr(observation)
    if observation is None or isinstance(observation, bool | int | float | str):
        return observation
    message = f"a model cannot be shown an observation that holds {type(observation).__name__}"
    raise UsageError(message)


def _find_decision(response: Row) -> Row:
    answers = response.get("answers")
    if not isinstance(answers, dict) or set(answers) != {QUESTION} or not isinstance(answers[QUESTION], dict):
        named = sorted(answers) if isinstance(answers, dict) else answers
        message = f"the response answers {named}, not {QUESTION!r} alone"
        raise AnswerError(message)
    answer: Row = answers[QUESTION]
    if answer.get("type") != "choice":
        message = f"the answer is of the type {answer.get('type')!r}, not 'choice'"
        raise AnswerError(message)
    return answer


def _find_chat(response: Row) -> Row:
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = first.get("message") if isinstance(first, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        problem = "the response holds no single message with text"
        raise AnswerError(problem)
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        finish = first.get("finish_reason") if isinstance(first, dict) else None
        problem = f"the message is not JSON (it ended as {finish!r})"
        raise AnswerError(problem) from None
    if not isinstance(answer, dict) or set(answer) != {"choice", "probabilities"}:
        problem = "the message is no object of choice and probabilities"
        raise AnswerError(problem)
    return answer


def _take_fields(document: JsonValue, names: Sequence[str], where: str) -> Row:
    if not isinstance(document, dict) or set(document) != set(names):
        found = ", ".join(map(str, document)) if isinstance(document, dict) else type(document).__name__
        message = f"{where} needs exactly {', '.join(names)}; it has {found}"
        raise UsageError(message)
    return document


def _take_text(value: JsonValue, where: str, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        message = f"{where} must be text of 1 to {most} characters"
        raise UsageError(message)
    return value
