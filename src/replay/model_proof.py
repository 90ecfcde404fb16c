"""Proves offline that each recorded action follows from what a model was asked and what it answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.encoding import decode_value, encode_value
from recorder.errors import CannotRunError, DamagedError, UsageError
from recorder.exchanges import EXCHANGES, LEDGER, ledger_entry, read_exchanges, read_spelled, spell_json, sum_ledger
from recorder.programs import PATHS, ActionProgram, AnswerError
from recorder.reading import ArrayFile, LineStream
from recorder.records import TRANSITIONS, Row, read_strict_json, sha256_of_json
from replay.divergence import Mismatch, Place, json_differences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import gymnasium

    from recorder.records import JsonValue
    from replay.verdict import Verdict

    Act = Callable[[Any], Any]


def holds_model_policy(manifest: Row) -> bool:
    """Whether the episode's actions were chosen by a model that a program asked."""
    policy = manifest.get("policy")
    return isinstance(policy, dict) and isinstance(policy.get("program"), dict)


class ModelProof:
    """What a model was asked and answered in one episode, held against its transitions.

    Args:
        folder: The episode; its log lies beside it or at the root of its run.
        manifest: Its manifest.
        verdict: Gets what does not fit, and how much was compared.
    """

    def __init__(self, folder: Path, manifest: Row, verdict: Verdict) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._policy: Row = manifest["policy"]
        self._verdict = verdict
        self._arrays = ArrayFile(folder)
        self._exchanges: dict[int, Row] = {}
        self._last = 0

    def prove(self, *, decisions: int, env: gymnasium.Env[Any, Any] | None = None) -> None:
        """Check every decision up to a number; the first that does not fit ends it.

        Args:
            decisions: How many were replayed.
            env: Lets the policy decide again, over the recorded exchanges instead of a server, for this environment.

        Raises:
            MissingExtraError: The policy should decide again, and httpx is not installed.
        """
        try:
            program = ActionProgram.from_json(self._policy["program"], where="the manifest's program")
        except UsageError as error:
            self._verdict.add_fault(str(error))
            return
        asked = [self._policy.get(name) for name in ("protocol", "model", "response_model", "base_url")]
        if not all(isinstance(text, str) for text in asked) or asked[0] not in PATHS:
            self._verdict.add_fault("the manifest's policy lacks protocol, model, response_model or base_url")
            return
        if not self._compare(
            Place("manifest"), "policy['program_sha256']", self._policy.get("program_sha256"), program.sha256
        ):
            return
        if not self._read_log():
            return
        rows = self._read_transitions(decisions)
        policy = None if env is None else self._ask_again(program, env, self._own_exchanges(rows))
        for row in rows:
            if not self._prove_decision(program, row, policy):
                return
        self._verdict.compared["predictions"] = len(rows)
        self._verdict.compared["exchanges"] = len(rows)
        if env is not None:
            self._verdict.compared["policy_actions"] = len(rows)

    def _ask_again(self, program: ActionProgram, env: gymnasium.Env[Any, Any], exchanges: list[Row]) -> Act:
        from recorder.model_policy import ModelPolicy, ModelSettings  # noqa: PLC0415 - httpx is optional
        from recorder.transport import open_client  # noqa: PLC0415 - as above
        from replay.transport import ReplayTransport  # noqa: PLC0415 - as above

        asked = self._policy
        settings = ModelSettings(
            asked["model"], asked["base_url"], asked["protocol"], asked["response_model"], retries=len(exchanges)
        )
        client = open_client(ReplayTransport(exchanges), settings.timeout_s)
        return ModelPolicy(program, settings, None, env, client=client, sleep=lambda _: None)

    def _read_log(self) -> bool:
        found = [place / EXCHANGES for place in (self._folder, self._folder.parent) if (place / EXCHANGES).is_file()]
        if not found:
            return self._verdict.add_fault(f"{EXCHANGES} is missing, beside the episode and at the root of its run")
        try:
            rows = read_exchanges(found[0])
        except DamagedError as error:
            return self._verdict.add_fault(str(error))
        self._exchanges = {row["exchange_id"]: row for row in rows}
        missing = sorted(set(range(1, len(rows) + 1)) - set(self._exchanges))
        if missing:
            return self._verdict.add_fault(f"{found[0]} lacks exchange {missing[0]}: ids are contiguous from 1")
        for row in rows:
            if row["request_sha256"] != sha256_of_json(row["request"]):
                return self._verdict.add_fault(
                    f"{found[0]}: exchange {row['exchange_id']} has another request than its digest says"
                )
        return self._check_ledger(found[0].with_name(LEDGER), rows)

    def _check_ledger(self, path: Path, rows: list[Row]) -> bool:
        if not path.is_file():
            self._verdict.not_checked.append(f"ledger: there is no {LEDGER}, as the run was interrupted")
            return True
        try:
            ledger = read_strict_json(path.read_bytes(), where=str(path))
        except DamagedError as error:
            return self._verdict.add_fault(str(error))
        ledger = ledger if isinstance(ledger, dict) else {}
        entries = [ledger_entry(row) for row in rows]
        totals = ledger.get("totals")
        if isinstance(totals, dict):
            totals = {key: value for key, value in totals.items() if key != "redacted_places"}
        stated = [ledger.get("attempts"), totals, ledger.get("kind"), ledger.get("max_api_calls")]
        expected = [entries, sum_ledger(entries), "api-ledger", self._policy.get("max_api_calls")]
        if sha256_of_json(stated) != sha256_of_json(expected):
            return self._verdict.add_fault(f"{path} does not say what {EXCHANGES} and the manifest hold")
        return True

    def _read_transitions(self, decisions: int) -> list[Row]:
        rows: list[Row] = []
        for line in LineStream(self._folder / TRANSITIONS):
            if len(rows) == decisions or not line.endswith(b"\n"):
                break
            rows.append(read_strict_json(line, where=TRANSITIONS))
        return rows

    def _own_exchanges(self, rows: list[Row]) -> list[Row]:
        """The exchanges of these decisions, with the failed attempts before each."""
        named = [row["prediction"].get("exchange_id") for row in rows if isinstance(row["prediction"], dict)]
        numbers = {number for number in named if type(number) is int and number in self._exchanges}
        own = []
        for number in sorted(numbers):
            before = number - 1
            failed: list[Row] = []
            while before in self._exchanges and before not in numbers and self._is_failed(before, number):
                failed.append(self._exchanges[before])
                before -= 1
            own += [*reversed(failed), self._exchanges[number]]
        return own

    def _is_failed(self, before: int, number: int) -> bool:
        earlier, later = self._exchanges[before], self._exchanges[number]
        return earlier["response"] is None and earlier["request_sha256"] == later["request_sha256"]

    def _prove_decision(self, program: ActionProgram, row: Row, policy: Act | None) -> bool:
        place = Place("transition", row["decision"])
        observation = decode_value(row["observation"], self._arrays)
        exchange = self._take_exchange(place, program, row["prediction"], observation)
        if exchange is None:
            return False
        number, settings = exchange["exchange_id"], self._policy
        try:
            derived = program.decode(settings["protocol"], read_spelled(exchange["response"]))
            action = program.action_of(derived)
        except DamagedError as error:
            return self._verdict.add_fault(f"exchange {number}: {error}")
        except AnswerError as error:
            return self._compare(place, "exchange.response", exchange["response"], f"(no answer: {error})")
        whole = {**derived, "requested_model": settings["model"], "exchange_id": number}
        model = derived["response_model"]
        return (
            self._compare(place, "prediction", row["prediction"], whole)
            and self._compare(place, "prediction['response_model']", model, settings["response_model"])
            and self._compare_action(place, decode_value(row["action"], self._arrays), action)
            and (policy is None or self._compare_policy(place, row, policy, observation))
        )

    def _take_exchange(
        self,
        place: Place,
        program: ActionProgram,
        prediction: JsonValue,
        observation: Any,  # noqa: ANN401
    ) -> Row | None:
        """The exchange that a prediction names, if it asks for this decision and none before used it."""
        number = prediction.get("exchange_id") if isinstance(prediction, dict) else None
        exchange = self._exchanges.get(number) if type(number) is int else None
        if exchange is None or type(number) is not int:
            self._compare(place, "prediction['exchange_id']", number, "(an exchange of the log)")
            return None
        if number <= self._last:
            self._compare(place, "prediction['exchange_id']", number, "(one after those of the decisions before)")
            return None
        settings = self._policy
        request = spell_json(program.request(settings["protocol"], settings["model"], observation))
        is_asked = self._compare(place, "exchange.request", exchange["request"], request)
        if not is_asked or not self._check_attempts(place, number, exchange):
            return None
        self._last = number
        return exchange

    def _check_attempts(self, place: Place, number: int, exchange: Row) -> bool:
        """An answer that was used came whole, from where the policy asks; those passed over before it had failed."""
        url = f"{self._policy['base_url']}/{PATHS[self._policy['protocol']]}"
        expected = {"method": "POST", "url": url, "events": None, "omitted": None, "error_type": None}
        for field, value in expected.items():
            if not self._compare(place, f"exchange.{field}", exchange[field], value):
                return False
        if not 200 <= (exchange["status"] or 0) < 300:  # noqa: PLR2004 - what HTTP calls successful
            return self._compare(place, "exchange.status", exchange["status"], "(a successful one)")
        for before in range(self._last + 1, number) if self._last else ():
            passed = self._exchanges.get(before)
            if passed is not None and not self._is_failed(before, number):
                return self._compare(place, "exchange", before, f"(a failed attempt at what exchange {number} asks)")
        return True

    def _compare_action(self, place: Place, recorded: Any, derived: JsonValue) -> bool:  # noqa: ANN401 - any action
        """In the dtype in which it reached the environment: a program's 0.1 is another number in float32."""
        if hasattr(recorded, "dtype"):
            try:
                derived = np.asarray(derived, dtype=recorded.dtype).tolist()
            except (TypeError, ValueError, OverflowError):
                return self._compare(place, "action", recorded.tolist(), derived)
            recorded = recorded.tolist()
        return self._compare(place, "action", recorded, derived)

    def _compare_policy(self, place: Place, row: Row, policy: Act, observation: Any) -> bool:  # noqa: ANN401
        try:
            taken = encode_value(policy(observation), is_sent=True)
        except CannotRunError as error:
            taken = f"(no action: {error})"
        return self._compare(place, "policy action", row["action"], taken)

    def _compare(self, place: Place, field: str, recorded: JsonValue, derived: JsonValue) -> bool:
        """Keep the first place in which they differ."""
        for path, expected, stated in json_differences(derived, recorded, field):
            return self._verdict.keep([Mismatch(place, path, None, stated, expected)])
        return True
