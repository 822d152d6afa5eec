#!/usr/bin/env python3
"""Let many clients audit embedding sets on `trueshot serve` at once, and measure answers, times and memory.

    python bench/measure/serve_load.py --clients 200 --seconds 60
    python bench/measure/serve_load.py --seconds 10 --serve "--queue 8"

Starts the server on a free port of this machine. Every client sends one audit after the other on a connection that it
keeps. Prints one JSON object, with these figures among others:

  answered              requests with the status 200
  refused               requests with the status 429 or 503 and the header Retry-After, which the client obeys
  problems              anything else: other statuses, lost connections, incomplete answers
  p50_ms .. longest_ms  percentiles of the response times of answered requests
  memory_.._mib         resident memory of the server before, at most and after

Exits with 1 if there were problems or the server did not stop normally. Needs no packages. docs/results/serve.md has the
figures.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

HOST = "127.0.0.1"


@dataclass
class Tally:
    """Counts and response times of the requests of all clients."""

    seconds: list[float] = field(default_factory=list)
    """Response times of the answered requests; for the first one of a connection, including the time for connecting."""
    duration: float = 0
    """Seconds from the start until all clients have ended."""
    refused: int = 0
    """Requests that the server refused and asked to send again later."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of everything else that happened."""


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--clients", type=benchlib.positive, default=200, metavar="N",
                        help="clients at the same time [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=60, metavar="S",
                        help="time during which clients send audits [default: %(default)s]")
    parser.add_argument("--ways", type=benchlib.positive, default=5, metavar="N",
                        help="classes of a set [default: %(default)s]")
    parser.add_argument("--shots", type=benchlib.positive, default=10, metavar="N",
                        help="rows per class [default: %(default)s]")
    parser.add_argument("--dim", type=benchlib.positive, default=640, metavar="N",
                        help="values per row [default: %(default)s]")
    benchlib.add_server(parser)
    return parser.parse_args()


def support_set(seed: int, ways: int, shots: int, dim: int) -> bytes:
    """The JSON body of one audit: rows around class means. A label names another class with a probability of 0.2."""
    draw = random.Random(seed)
    means = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(ways)]
    rows, labels = [], []
    for way in range(ways):
        for _ in range(shots):
            rows.append([round(value + draw.gauss(0, 0.8), 5) for value in means[way]])
            is_wrong = draw.random() < 0.2
            labels.append(f"class {(way + 1) % ways if is_wrong else way}")
    return json.dumps({"rows": rows, "labels": labels}).encode()


async def post(port: int, body: bytes, reader, writer) -> tuple[int, dict[str, str], bytes]:
    """Sends a request on an open connection and returns status, headers and body of the response."""
    head = (f"POST /api/v1/audit HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n")
    writer.write(head.encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    answer = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, answer


async def client(number: int, port: int, bodies: list[bytes], until: float, tally: Tally) -> None:
    """Sends audits until the time is over; reconnects if the connection is lost. Client `number` begins with body
    `number`, so that clients send different bodies at the same time."""
    reader = writer = None
    turn = number
    while time.monotonic() < until:
        begin = time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(HOST, port)
            status, headers, answer = await post(port, bodies[turn % len(bodies)], reader, writer)
        except (OSError, EOFError, asyncio.IncompleteReadError, ValueError, KeyError) as problem:
            tally.problems.append(repr(problem))
            writer = None
            continue
        turn += 1
        if status == 200:
            tally.seconds.append(time.monotonic() - begin)
            if b'"expected_wrong"' not in answer:
                tally.problems.append(f"an answer without expected_wrong: {answer[:200]!r}")
        elif status in (429, 503) and "retry-after" in headers:
            tally.refused += 1
            await asyncio.sleep(float(headers["retry-after"]))
        else:
            tally.problems.append(f"{status}: {answer[:200]!r}")
    if writer:
        writer.close()


async def load(arguments: argparse.Namespace, port: int, bodies: list[bytes]) -> Tally:
    """Runs all clients at the same time. Requests in progress when the time is over are waited for."""
    tally, start = Tally(), time.monotonic()
    until = start + arguments.seconds
    await asyncio.gather(*(client(number, port, bodies, until, tally) for number in range(arguments.clients)))
    tally.duration = time.monotonic() - start
    return tally


def main() -> None:
    arguments = parse_arguments()
    # Different sets, which every client sends in turns.
    bodies = [support_set(seed, arguments.ways, arguments.shots, arguments.dim) for seed in range(32)]
    machine = benchlib.describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        server, port = benchlib.start_server(arguments, folder)
        try:
            idle = benchlib.process_memory(server.pid)
            tally = asyncio.run(load(arguments, port, bodies))
            alive = server.poll() is None
            after = benchlib.process_memory(server.pid)
            server.terminate()
            exit_status = server.wait(timeout=30)
        finally:
            # Without effect unless this script was interrupted or the server does not stop.
            server.kill()
    seconds = tally.seconds
    print(json.dumps({
        "clients": arguments.clients, "seconds": arguments.seconds,
        "set": f"{arguments.ways} classes x {arguments.shots} rows of {arguments.dim} values, {len(bodies[0])} bytes of JSON",
        "answered": len(seconds), "answered_per_second": round(len(seconds) / tally.duration, 1),
        "refused": tally.refused, "problems": len(tally.problems), "first_problems": tally.problems[:3],
        **benchlib.percentiles(seconds),
        "memory_idle_mib": benchlib.mebibytes(idle, "VmRSS"), "memory_peak_mib": benchlib.mebibytes(after, "VmHWM"),
        "memory_after_mib": benchlib.mebibytes(after, "VmRSS"),
        "server_alive": alive, "exit_status": exit_status,
        "versions": {"trueshot": benchlib.trueshot_version(arguments.trueshot)}, "machine": machine,
    }, indent=1))
    sys.exit(0 if alive and not tally.problems and exit_status == 0 else 1)


if __name__ == "__main__":
    main()
