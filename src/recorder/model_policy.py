"""A policy that asks a model over HTTP; without a usable answer there is no action, and never one of our own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.errors import BudgetExceededError, CannotRunError
from recorder.exchanges import unspell_json
from recorder.programs import PATHS, AnswerError
from recorder.records import sha256_of_json
from recorder.transport import HttpError, RecordingTransport, open_client

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium

    from recorder.exchanges import ExchangeLog
    from recorder.programs import ActionProgram, Protocol
    from recorder.records import JsonValue, Row
    from recorder.transport import Client, Response

RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504, 529})


@dataclass(frozen=True)
class ModelSettings:
    """How a model is asked.

    Attributes:
        model: The name that is requested.
        base_url: Of its server.
        protocol: `decisions` (questions in, answers with probabilities out) or `chat` (OpenAI's chat completions).
        response_model: The name that every response must state; None pins the requested one.
        retries: Further attempts after a status that is worth it, or after an attempt that got no response.
        retry_after_limit_s: The longest that a server's `Retry-After` is waited for.
        timeout_s: For one attempt.
        deadline_s: For one decision, all its attempts and waits included.
    """

    model: str
    base_url: str
    protocol: Protocol = "decisions"
    response_model: str | None = None
    retries: int = 2
    retry_after_limit_s: float = 30.0
    timeout_s: float = 60.0
    deadline_s: float = 120.0

    def to_json(self) -> Row:
        """As a manifest holds it."""
        return {
            "model": self.model,
            "base_url": self.base_url,
            "protocol": self.protocol,
            "response_model": self.response_model or self.model,
        }


class ModelPolicy:
    """Asks a model before each decision.

    Args:
        program: What is asked.
        settings: Whom, and how.
        log: Takes every exchange; its budget bounds them.
        env: The environment, for the dtype of its actions.
        key: Sent as a bearer token; the log's redactor has to know it.
        client: Sends instead of a client of its own, for instance one over a `ReplayTransport`.
        sleep: Waits.
        clock: Seconds that only go forwards.

    Attributes:
        prediction: Why the last action was chosen.
    """

    def __init__(
        self,
        program: ActionProgram,
        settings: ModelSettings,
        log: ExchangeLog | None,
        env: gymnasium.Env[Any, Any],
        *,
        key: str | None = None,
        client: Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet."""
        self._program = program
        self._settings = settings
        self._env = env
        self._client = client or open_client(RecordingTransport(_require_log(log)), settings.timeout_s)
        # As bytes: a text would have to be ASCII, and its failure would be an attempt without an exchange.
        self._headers: dict[bytes, bytes] = {} if key is None else {b"authorization": f"Bearer {key}".encode()}
        for offered in program.actions:  # before anything is asked
            action_for(env, offered.action)
        self._redact: Callable[[str], str] = str if log is None else log.redactor.redact_text
        self._url = f"{settings.base_url.rstrip('/')}/{PATHS[settings.protocol]}"
        self._sleep = sleep
        self._clock = clock
        self.prediction: Row = {}

    def __call__(self, observation: Any) -> Any:  # noqa: ANN401 - any observation, any action
        """The action that the model chose.

        Raises:
            AnswerError: The answer cannot be used, or comes from another model.
            BudgetExceededError: No attempt is left.
            CannotRunError: The server did not answer in time, or refused.
        """
        settings = self._settings
        request = self._program.request(settings.protocol, settings.model, observation)
        response = self._ask(request)
        prediction = self._program.decode(settings.protocol, _read_document(response))
        pinned = self._redact(settings.response_model or settings.model)
        if prediction["response_model"] != pinned:
            message = f"the response comes from {prediction['response_model']!r}, not from {pinned!r}: it is not used"
            raise AnswerError(message)
        exchange_id = response.extensions.get("exchange_id")
        self.prediction = {**prediction, "requested_model": settings.model, "exchange_id": exchange_id}
        return action_for(self._env, self._program.action_of(prediction))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, request: Row) -> Response:
        deadline = self._clock() + self._settings.deadline_s
        for attempt in range(self._settings.retries + 1):
            is_last = attempt == self._settings.retries
            wait = min(0.25 * 2**attempt, 1.0)
            try:
                response = self._client.post(self._url, json=request, headers=self._headers)
            except BudgetExceededError:
                raise
            except HttpError as error:
                problem = f"the model's server gave no response: {type(error).__name__}"
            else:
                if response.is_success:
                    return response
                problem = f"the model's server answered with status {response.status_code}"
                if response.status_code not in RETRIED_STATUSES:
                    break
                wait = max(wait, self._asked_wait(response))
            if is_last or self._clock() + wait > deadline:
                break
            self._sleep(wait)
        message = f"{problem} (attempt {attempt + 1}): no action is taken without an answer"
        raise CannotRunError(message)

    def _asked_wait(self, response: Response) -> float:
        """Seconds that the server asks to wait, up to the limit."""
        try:
            return min(max(float(response.headers.get("retry-after", 0)), 0.0), self._settings.retry_after_limit_s)
        except ValueError:  # a date, which would need a clock that agrees with the server's
            return 0.0


def action_for(env: gymnasium.Env[Any, Any], action: JsonValue) -> Any:  # noqa: ANN401 - any action
    """A program's action in the dtype of the environment's action space.

    Raises:
        CannotRunError: The action space does not have it.
    """
    space = env.action_space
    try:
        converted = action if space.dtype is None else np.asarray(action, dtype=space.dtype)
    except (TypeError, ValueError, OverflowError):
        converted = action
    if isinstance(converted, np.ndarray) and converted.ndim == 0:
        converted = converted[()]
    is_rounded = isinstance(converted, np.ndarray | np.generic) and converted.dtype.kind in "biu"
    if is_rounded and sha256_of_json(converted.tolist()) != sha256_of_json(action):
        converted = None  # 0.7, 1.0 and true are no whole numbers
    if not space.contains(converted):
        message = f"the program's action {action!r} is not in {space}"
        raise CannotRunError(message)
    return converted


def _read_document(response: Response) -> JsonValue:
    """The response as the log has it, so that what is decided is what can be proved.

    Raises:
        AnswerError: It was not kept.
    """
    row = response.extensions.get("exchange")
    if row is not None:
        if row["response"] is None:
            message = f"the model's response cannot be used: {row['omitted'] or 'it is a stream of events'}"
            raise AnswerError(message)
        return unspell_json(row["response"])
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        message = f"the model's response is not JSON: {error}"
        raise AnswerError(message) from None


def _require_log(log: ExchangeLog | None) -> ExchangeLog:
    if log is None:
        message = "a model is asked with a log for its exchanges, or with a client that replays them"
        raise CannotRunError(message)
    return log
