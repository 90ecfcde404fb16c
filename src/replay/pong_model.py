"""What a model's prediction in the historical layout implies, where its exchanges are not at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replay.divergence import MISSING, ArraySources, Mismatch, compare_values

if TYPE_CHECKING:
    from recorder.records import JsonValue, Row
    from replay.divergence import Place

# What the predictions of one model have in common.
_OF_ONE_MODEL = ("backend", "requested_model")

# Numbers of a model's prediction that an action follows from: the least that there can be, and how far their sum may
# be from 1 (six probabilities of two decimals each).
_NUMBERS: dict[str, tuple[float, float | None]] = {"action_probabilities": (0, 0.03 + 1e-6), "answers": (-1, None)}

# Numbers so close are a tie, which the lab's policies broke in more than one way.
_TIE = 1e-12

_NOTHING = ArraySources()


class ImpliedPredictions:
    """Holds each prediction of a model against the manifest, the action, its own numbers, and those before it.

    Attributes:
        model: What the predictions so far have in common.
        was_any: Whether the last one implied anything.

    Args:
        manifest: The episode's.
        program_hash: Of its question program; None if it has none.
    """

    def __init__(self, manifest: Row, program_hash: str | None) -> None:
        """Start with no prediction."""
        self._manifest = manifest
        self._program_hash = program_hash
        self.model: Row = {}
        self.was_any = False

    def compare(self, place: Place, action: int, prediction: Row) -> list[Mismatch]:
        """What does not fit in one prediction."""
        implied = self._imply(action, prediction)
        self.was_any = bool(implied)
        mismatches = [
            mismatch
            for key, value in implied.items()
            for mismatch in compare_values(place, f"prediction[{key!r}]", prediction.get(key, MISSING), value, _NOTHING)
        ]
        for key, (least, rounding) in _NUMBERS.items():
            doubt = _doubt(prediction[key], action, least, rounding) if key in prediction else None
            if doubt is not None:
                said = f"(action {action} was requested)"
                mismatches.append(Mismatch(place, f"prediction[{key!r}]", None, doubt, said))
        return mismatches

    def _imply(self, action: int, prediction: Row) -> Row:
        """What a model's prediction has to say, going by the manifest, the action and the predictions before it."""
        implied: Row = {}
        if self._program_hash is not None:
            implied["program_hash"] = self._program_hash
        if "policy" in prediction:
            implied["policy"] = self._manifest["policy"]
        if "chosen_action" in prediction or prediction.get("prediction_type") == "action-choice":
            implied["chosen_action"] = action
        for name in _OF_ONE_MODEL:
            if name in prediction or name in self.model:
                implied[name] = self.model.setdefault(name, prediction.get(name))
        return implied


def _doubt(answers: JsonValue, action: int, least: float, rounding: float | None) -> str | None:
    """What in a model's own numbers speaks against the requested action, or None.

    Args:
        answers: By action id a number up to 1, or an object that has it as `q`.
        action: The requested one.
        least: The least number that there can be.
        rounding: How far the sum may be from 1; None where the numbers are no probabilities.
    """
    numbers: dict[str, float] = {}
    for key, answer in answers.items() if isinstance(answers, dict) else ():
        number: Any = answer.get("q") if isinstance(answer, dict) else answer
        if type(number) in {int, float} and least <= number <= 1:
            numbers[key] = number
    if not isinstance(answers, dict) or len(numbers) != len(answers) or str(action) not in numbers:
        return f"(no number from {least} to 1 for every action)"
    if rounding is not None and abs(sum(numbers.values()) - 1) > rounding:
        return f"(adds up to {sum(numbers.values()):g}, not to 1)"
    best = max(numbers, key=lambda key: numbers[key])
    return f"(prefers action {best})" if numbers[str(action)] < numbers[best] - _TIE else None
