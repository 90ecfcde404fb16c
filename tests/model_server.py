"""A model's HTTP server on loopback, in a process of its own: answers as the path says, faults included.

Prints its port, then serves until it is killed. Paths: `/answer` (JSON that echoes the request), `/gzip`, `/stream`
(server-sent events), `/status/N`, `/cut` (a body that ends early), `/cut-stream`, `/garbage`, `/list`, `/nan`,
`/empty-usage`, `/surrogate`, `/slow`, `/deep`.
"""

import gzip
import itertools
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = {"model": "loopback-1", "usage": {"input_tokens": 3, "output_tokens": 5}}


COUNT = itertools.count(1)

# Which fault the answer of a number has: `python model_server.py 3=429 7=cut`.
FAULTS = {int(number): fault for number, _, fault in (word.partition("=") for word in sys.argv[1:])}


def choose(names, number):
    """Probabilities of two decimals, one name far ahead."""
    best = number % len(names)
    rest = 0.1 * (len(names) - 1)
    return {name: round(1 - rest, 2) if place == best else 0.1 for place, name in enumerate(names)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        kind = self.path.partition("?")[0].strip("/").partition("/")
        getattr(self, f"answer_{kind[0].replace('-', '_')}")(body, kind[2])

    def send(self, data, *, status=200, content_type="application/json", length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def answer_v1(self, body, rest):
        getattr(self, "answer_decisions" if rest == "decisions" else "answer_chat")(body, rest)

    def answer_answer(self, body, _):
        asked = json.loads(body) if body else None
        self.send(json.dumps({**ANSWER, "asked": asked, "auth": self.headers.get("authorization")}).encode())

    def answer_gzip(self, body, _):
        self.send(gzip.compress(json.dumps({**ANSWER, "asked": json.loads(body)}).encode()), Content_Encoding="gzip")

    def answer_stream(self, body, _, *, is_cut=False):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (b'data: {"n": 0}\n', b"\nevent: note\nid: 7\ndata: two\ndata: lines\n\n", b": comment\n\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        if is_cut:
            self.wfile.write(b"ff\r\ndata: {")
            self.close_connection = True
            return
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def answer_cut_stream(self, body, _):
        self.answer_stream(body, _, is_cut=True)

    def answer_status(self, body, number):
        secret = self.headers.get("authorization", "")
        self.send(json.dumps({"error": f"no: {secret}"}).encode(), status=int(number), Retry_After="1")

    def answer_cut(self, body, _):
        self.send(b'{"model": "loop', length=1000)
        self.close_connection = True

    def answer_garbage(self, body, _):
        self.send(b"<html>not JSON</html>")

    def answer_list(self, body, _):
        self.send(b"[1, 2]")

    def answer_nan(self, body, _):
        self.send(
            b'{"model": "loopback-1", "usage": {"cost": NaN, "more": [Infinity, -Infinity]}, "id": 9007199254740993}'
        )

    def answer_empty_usage(self, body, _):
        self.send(b'{"model": "loopback-1", "usage": null}')

    def answer_surrogate(self, body, _):
        self.send(b'{"model": "lone \\ud800", "\\udfff": {"float": "NaN"}}')

    def answer_deep(self, body, _):
        self.send(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)

    def answer_slow(self, body, _):
        time.sleep(5)
        self.send(b"{}")

    def answer_decisions(self, body, _):
        """Chooses by the request's length, as repeatable as a model should be; faults as `FAULTS` says."""
        asked = json.loads(body)
        names = list(asked["questions"]["next_action"]["criteria"])
        probabilities = choose(names, len(body))
        best = max(probabilities, key=probabilities.get)
        answer = {"type": "choice", "choice": best, "confidence": 0.5, "probabilities": probabilities}
        self.send_answer({"answers": {"next_action": answer}}, asked)

    def answer_chat(self, body, _):
        asked = json.loads(body)
        names = asked["response_format"]["json_schema"]["schema"]["properties"]["choice"]["enum"]
        probabilities = choose(names, len(body))
        best = max(probabilities, key=probabilities.get)
        content = json.dumps({"choice": best, "probabilities": probabilities})
        message = {"role": "assistant", "content": content}
        self.send_answer({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}, asked)

    def send_answer(self, answer, asked):
        number = next(COUNT)
        fault = FAULTS.get(number)
        document = {"model": asked["model"], "usage": {"input_tokens": 3, "output_tokens": 5}, **answer}
        if fault in {"429", "500", "503"}:
            self.answer_status(b"", fault)
        elif fault == "model":
            self.send(json.dumps({**document, "model": "another-model"}).encode())
        elif fault == "nan":
            self.send(json.dumps({**document, "usage": {"cost": float("nan")}}).encode())
        elif fault == "usage":
            self.send(json.dumps({**document, "usage": None}).encode())
        elif fault == "sum":
            self.send(json.dumps(document).replace("0.1", "0.9").encode())
        elif fault is not None:
            getattr(self, f"answer_{fault}")(b"", "")
        else:
            self.send(json.dumps(document).encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
