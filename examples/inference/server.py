"""An inference server that scales with its load: `python server.py NODE…`.

A front counts requests and passes each to the replica with the fewest in flight. A replica is a process of
its own that predicts. In a cluster each would fill a node; here all of them are on the loopback interface.

    POST /predict        64 numbers in JSON; the answer is a class
    GET  /scale          {"wanted": replicas for the present load, "running": [nodes], …}
    PUT  /scale          {"nodes": [nodes]}: where replicas may run from now on; the answer is that of GET

How many replicas are wanted follows the requests of the last seconds, as in Knative or KEDA. The server
starts one on each node that it was given, as far as it wants them. One that is to end first answers what it
was sent.
"""

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil

import numpy as np

HERE = "127.0.0.1"
LOOK_S = 0.1  # between two looks at the load
ANSWER_S = 60.0  # the longest that a replica may take for an answer


class Handler(BaseHTTPRequestHandler):
    """JSON in and out, and no line for each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer's body does not wait until its head was acknowledged

    def body(self):
        """What was sent."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, value):
        """Send a JSON value."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Nothing."""


# ── a replica ─────────────────────────────────────────────────────────────────────────────────────


def run_replica():
    """Predict until the standard input ends; the first line of output is the port."""
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(64, 512)), draw.normal(size=(512, 10))

    class Predict(Handler):
        def do_POST(self):
            try:
                pixels = np.array(json.loads(self.body()), dtype=np.float64).reshape(64)
            except (TypeError, ValueError):
                self.answer(400, {"detail": "expected a list of 64 numbers"})
                return
            scores = np.maximum(pixels @ weights[0], 0.0) @ weights[1]
            self.answer(200, {"class": int(scores.argmax())})

    with ThreadingHTTPServer((HERE, 0), Predict) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()  # the front has ended, or wants this one to end


class Replica:
    """A replica as the front knows it."""

    def __init__(self, node):
        self.node, self.in_flight, self.ends = node, 0, False
        command = [sys.executable, __file__, "--replica"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = 0  # until it listens

    def wait_until_it_listens(self):
        """Take requests once it has said its port."""
        self.port = int(self.process.stdout.readline() or 0)

    def end(self):
        """Have it end, and wait for that."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# ── the front ─────────────────────────────────────────────────────────────────────────────────────


class Scaler:
    """Which replicas there are, and how many are wanted. All of it under one lock."""

    def __init__(self, nodes, each, window_s, keep_s):
        self.most, self.each, self.window_s, self.keep_s = len(nodes), each, window_s, keep_s
        self.nodes = list(nodes)  # where replicas may run
        self.replicas = {}  # by node, those that are ending included
        self.arrivals_s = deque()  # of requests within the window
        self.wants = deque()  # (time, replicas for the load) within the last `keep_s`
        self.served = self.failed = 0
        self.most_running = 0
        self.changed = threading.Condition()

    def note_arrival(self):
        """A request has come."""
        with self.changed:
            self.arrivals_s.append(time.monotonic())

    def wanted(self):
        """Replicas for the load: more at once, fewer once that has held for a while."""
        now_s = time.monotonic()
        while self.arrivals_s and self.arrivals_s[0] < now_s - self.window_s:
            self.arrivals_s.popleft()
        needed = ceil(len(self.arrivals_s) / self.window_s / self.each)
        self.wants.append((now_s, min(max(needed, 1), self.most)))
        while self.wants[0][0] < now_s - self.keep_s:
            self.wants.popleft()
        return max(count for _, count in self.wants)

    def shown(self):
        """The answer of /scale."""
        with self.changed:
            rate = len(self.arrivals_s) / self.window_s
            figures = {"rate": rate, "served": self.served, "failed": self.failed}
            running = {"running": sorted(self.replicas), "most_running": self.most_running}
            return {"wanted": self.wanted(), **running, **figures}

    def allow(self, nodes):
        """Replicas may run on these nodes from now on."""
        with self.changed:
            self.nodes = list(nodes)
            self.scale()

    def scale(self):
        """Start replicas, and end those that are too many or not allowed any more."""
        for node, replica in [*self.replicas.items()]:
            if replica.process.poll() is not None and not replica.ends:
                del self.replicas[node]  # it has died; another takes its place
        staying = self.nodes[max(len(self.nodes) - self.wanted(), 0) :]
        for node in staying:
            if node not in self.replicas:
                self.replicas[node] = replica = Replica(node)
                threading.Thread(target=self.join, args=(replica,), daemon=True).start()
        for node, replica in self.replicas.items():
            if node not in staying and not replica.ends:
                replica.ends = True
                threading.Thread(target=self.part, args=(replica,), daemon=True).start()
        self.most_running = max(self.most_running, len(self.replicas))

    def join(self, replica):
        """Wait until a replica listens."""
        replica.wait_until_it_listens()
        with self.changed:
            self.changed.notify_all()

    def part(self, replica):
        """End a replica once it has answered all that it was sent."""
        with self.changed:
            self.changed.wait_for(lambda: replica.in_flight == 0)
        replica.end()
        with self.changed:
            del self.replicas[replica.node]
            self.scale()

    def predict(self, body):
        """Pass a request to a replica: its status and answer."""
        with self.changed:
            if not self.changed.wait_for(self.listening, ANSWER_S):
                return 503, b'{"detail": "no replica runs"}'
            replica = min(self.listening(), key=lambda each: each.in_flight)
            replica.in_flight += 1
        connection = HTTPConnection(HERE, replica.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/predict", body)
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        except (OSError, HTTPException) as failure:
            status, data = 502, json.dumps({"detail": str(failure)}).encode()
        finally:
            connection.close()
        with self.changed:
            replica.in_flight -= 1
            self.served += status == 200
            self.failed += status >= 500
            self.changed.notify_all()
        return status, data

    def listening(self):
        """Replicas that take requests."""
        return [replica for replica in self.replicas.values() if replica.port and not replica.ends]

    def follow_load(self):
        """Scale for ever."""
        while True:
            time.sleep(LOOK_S)
            with self.changed:
                self.scale()


def serve(scaler, port):
    """Answer requests until a signal comes."""

    class Front(Handler):
        def do_POST(self):
            scaler.note_arrival()
            self.answer(*scaler.predict(self.body()))

        def do_GET(self):
            self.answer(200, scaler.shown())

        def do_PUT(self):
            try:
                nodes = [str(node) for node in json.loads(self.body())["nodes"]]
            except (KeyError, TypeError, ValueError):
                self.answer(400, {"detail": 'expected {"nodes": [names]}'})
                return
            scaler.allow(nodes)
            self.answer(200, scaler.shown())

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    with Server((HERE, port), Front) as server:
        print(f"serving on http://{HERE}:{server.server_address[1]}", flush=True)
        threading.Thread(target=scaler.follow_load, daemon=True).start()
        server.serve_forever()


def main():
    """Run the front, or one replica."""
    parser = argparse.ArgumentParser(description="An inference server that scales with its load.")
    parser.add_argument("nodes", nargs="*", help="all its nodes, for at most one replica each")
    parser.add_argument("--port", type=int, default=8800)
    parser.add_argument("--each", type=float, default=20.0, help="requests a second for one replica")
    parser.add_argument("--window", type=float, default=2.0, help="seconds over which requests are counted")
    parser.add_argument("--keep", type=float, default=4.0, help="seconds until it scales down")
    parser.add_argument("--replica", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replica:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front says when
        run_replica()
        return
    if not given.nodes:
        parser.error("name at least one node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        serve(Scaler(given.nodes, given.each, given.window, given.keep), given.port)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
