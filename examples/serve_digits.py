"""Say which digit a picture shows: a small server over HTTP, on as many workers as keep its latency.

All workers on a machine listen on one port, and the system gives each connection to one of them. A POST of a
JSON list of 64 numbers is answered by the digit. On several machines a load balancer goes before the workers.
"""

import argparse
import json
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import stretto.sdk  # loads torch when it is needed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--port", type=int, default=8300)
parser.add_argument("--batch", type=int, default=32, help="pictures that a worker can look at together")
parser.add_argument("--slowly", type=float, default=0.0, help="seconds that a batch takes longer, for a look")
parser.add_argument("--each", type=float, default=0.0, help="and that each picture in it does")
parser.add_argument(
    "--ask", type=int, default=0, help="digits to ask itself over HTTP, and end; 0: others ask"
)
parser.add_argument("--report", type=float, default=10.0, help="seconds between two reports")


class Server(ThreadingHTTPServer):
    """A thread for each connection; closing it waits for those that are being answered."""

    allow_reuse_port = True  # several workers listen
    daemon_threads = False
    request_queue_size = 256
    job: "stretto.sdk.ServingJob"


class Handler(BaseHTTPRequestHandler):
    """One picture."""

    server: Server
    disable_nagle_algorithm = True  # or the answer, a second piece, waits for 40 ms

    def do_POST(self) -> None:
        """Ask the job, and wait for its answer."""
        try:
            picture = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            if not (isinstance(picture, list) and len(picture) == 64):
                raise ValueError
            self._say(200, {"digit": self.server.job.ask([float(each) for each in picture]).result()})
        except (ValueError, TypeError):
            self._say(400, {"error": "expected a JSON list of 64 numbers"})
        except stretto.sdk.Leaving:
            self._say(503, {"error": "this worker is to end: ask again"})

    def _say(self, status: int, said: dict[str, object]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (as the library has it)
        """Nothing: there are many."""


def ask(port: int, pictures: list[list[float]], digits: list[int]) -> None:
    """Ask a server for the digits of some pictures, one after the other, and say how many it knows."""
    right = 0
    for picture, digit in zip(pictures, digits, strict=True):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}", json.dumps(picture).encode())
        with urllib.request.urlopen(asked, timeout=60) as answer:
            right += json.load(answer)["digit"] == digit
    print(f"{len(digits)} asked, {right / len(digits):.4f} of them right", flush=True)


def main() -> int:
    """Serve until told to end; the exit status."""
    options = parser.parse_args()
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = stretto.sdk.device()  # the GPU of this worker, or the processor where there is none
    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    x = x.float() / 16

    # Where others would load a model: it learns from a tenth of the digits, alike on every worker.
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[::10].to(device)), y[::10].to(device)).backward()
        optimizer.step()
    model.eval()

    job = stretto.sdk.serve(batch_size=options.batch, report_s=options.report)
    with Server(("127.0.0.1", options.port), Handler) as server:
        server.job = job
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        print(f"listens on port {options.port}", flush=True)
        left = options.ask
        if left:
            own = (options.port, (16 * x[:left]).tolist(), y[:left].tolist())
            threading.Thread(target=ask, args=own).start()
        try:
            for pictures in job.batches():
                with torch.no_grad():
                    digits = model(torch.tensor(pictures, device=device) / 16).argmax(1)
                time.sleep(options.slowly + options.each * len(pictures))
                job.answer(digits.tolist())
                left -= len(pictures)
                if left == 0:
                    break
        finally:
            server.shutdown()  # no more connections; leaving the block waits for the answers under way
    return 0


if __name__ == "__main__":
    sys.exit(main())
