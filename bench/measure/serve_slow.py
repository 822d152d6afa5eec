#!/usr/bin/env python3
"""Measure `trueshot serve` for ordinary clients while other clients keep it waiting.

    python bench/measure/serve_slow.py
    python bench/measure/serve_slow.py --descriptors 256

Starts the server on a free port of this machine. Three kinds of clients use it at the same time:

  half open   1,000 connections that send half a header
  stalled     50 uploads that announce 64 MiB and send one byte
  ordinary    20 clients that send small audits, one after the other

A half-open or stalled connection that the server closes is opened again after a second. Prints one JSON object: response
times of the ordinary clients, problems of these clients (statuses other than 200, and responses that break off), the peak
memory of the server, and the time from SIGTERM to its end while the slow clients are still connected. Exits with 1 if a
figure is above its limit (`LIMITS`), an ordinary client had a problem, or the server did not stop normally. Needs no
packages. docs/results/serve.md has the figures.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import benchlib  # noqa: E402

HOST = "127.0.0.1"
# The body of an audit: six rows of three values in two classes.
SUPPORT_SET = json.dumps({
    "rows": [[1, 0, 0], [0.9, 0.1, 0], [0.8, 0.2, 0.1], [0, 1, 0], [0.1, 0.9, 0.2], [0.9, 0, 0.1]],
    "labels": ["a", "a", "a", "b", "b", "b"],
}).encode()
# An audit that takes longer has failed: the server would never answer.
MAX_SECONDS = 60
# The largest allowed values of these figures.
LIMITS = {"p99_ms": 2000, "memory_peak_mib": 400, "stop_seconds": 3}


@dataclass
class Tally:
    """Counts and response times of the clients."""

    seconds: list[float] = field(default_factory=list)
    """Response times of ordinary clients, including the time for connecting again."""
    reconnected: int = 0
    """Connections of ordinary clients that were closed before a response was complete."""
    problems: list[str] = field(default_factory=list)
    """Statuses other than 200, and responses to ordinary clients that broke off."""
    half_open: int = 0
    """Connections on which half a header was sent."""
    stalled: int = 0
    """Uploads of which one byte was sent."""
    stalled_408: int = 0
    """Stalled uploads that were refused with 408; others were closed because other clients needed the connections."""


def parse_arguments() -> argparse.Namespace:
    parser = benchlib.new_parser(__doc__)
    parser.add_argument("--half-open", type=benchlib.positive, default=1000, metavar="N",
                        help="connections that send half a header [default: %(default)s]")
    parser.add_argument("--stalled", type=benchlib.positive, default=50, metavar="N",
                        help="uploads that stop after one byte [default: %(default)s]")
    parser.add_argument("--clients", type=benchlib.positive, default=20, metavar="N",
                        help="ordinary clients [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=60, metavar="S",
                        help="time during which ordinary clients send audits [default: %(default)s]")
    parser.add_argument("--descriptors", type=benchlib.positive, metavar="N",
                        help="start the server with this limit on open files, soft and hard")
    benchlib.add_server(parser)
    return parser.parse_args()


async def send_half_a_header(port: int, tally: Tally) -> None:
    """A slow client: begins a request and waits until the server closes the connection, again and again."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            tally.half_open += 1
            writer.write(b"POST /api/v1/audit HTTP/1.1\r\nhost: 127.0.0.1\r\nx-")
            await reader.read()
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(1)


async def stall_an_upload(port: int, tally: Tally) -> None:
    """A slow client: announces a body of 64 MiB, sends one byte of it and waits, again and again."""
    head = (f"POST /api/v1/audit HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
            f"content-length: {64 << 20}\r\n\r\n")
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            tally.stalled += 1
            writer.write(head.encode() + b"{")
            tally.stalled_408 += (await reader.read()).startswith(b"HTTP/1.1 408")
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(1)


class BrokenResponse(Exception):
    """The server closed the connection after the headers of a response."""


async def audit(port: int, reader, writer) -> int:
    """Sends one audit on an open connection and returns the status."""
    head = (f"POST /api/v1/audit HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(SUPPORT_SET)}\r\n\r\n")
    writer.write(head.encode() + SUPPORT_SET)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(": ")[1]) for line in lines if line.lower().startswith("content-length"))
    try:
        await reader.readexactly(length)
    except (ConnectionError, asyncio.IncompleteReadError) as problem:
        raise BrokenResponse("the connection was closed in the middle of a response") from problem
    return int(lines[0].split()[1])


async def ordinary_client(number: int, port: int, until: float, tally: Tally) -> None:
    """Sends audits until the time is over. Every second client opens a new connection for each audit.

    If a connection is closed before the response, the client reconnects, as browsers do; the response time includes
    that.
    """
    reader = writer = begin = None
    while time.monotonic() < until:
        begin = begin or time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(HOST, port)
            status = await asyncio.wait_for(audit(port, reader, writer), MAX_SECONDS)
        except (ConnectionError, asyncio.IncompleteReadError, BrokenResponse, TimeoutError) as problem:
            # A connection may be closed before the response, but not in the middle of it.
            if isinstance(problem, (BrokenResponse, TimeoutError)) or getattr(problem, "partial", b""):
                tally.problems.append(repr(problem))
            tally.reconnected += 1
            writer = None
            continue
        tally.seconds.append(time.monotonic() - begin)
        if status != 200:
            tally.problems.append(str(status))
        if number % 2:
            writer.close()
            writer = None
        begin = None
        await asyncio.sleep(0.05)
    if writer:
        writer.close()


async def measure(arguments: argparse.Namespace, server: subprocess.Popen, port: int) -> tuple[Tally, dict, float]:
    """Runs all clients at the same time, then stops the server. Returns the counts, the memory of the server before it was
    stopped, and the seconds from SIGTERM to its end."""
    tally = Tally()
    slow = [asyncio.create_task(send_half_a_header(port, tally)) for _ in range(arguments.half_open)]
    slow += [asyncio.create_task(stall_an_upload(port, tally)) for _ in range(arguments.stalled)]
    # Time for all slow clients to connect before the ordinary ones start.
    await asyncio.sleep(2)
    until = time.monotonic() + arguments.seconds
    await asyncio.gather(*(ordinary_client(number, port, until, tally) for number in range(arguments.clients)))
    memory = benchlib.process_memory(server.pid)
    begin = time.monotonic()
    server.terminate()
    while server.poll() is None and time.monotonic() - begin < 60:
        await asyncio.sleep(0.01)
    stop_seconds = time.monotonic() - begin
    for task in slow:
        task.cancel()
    return tally, memory, stop_seconds


def main() -> None:
    arguments = parse_arguments()
    # This process needs an open file per connection, and some for itself.
    needed = arguments.half_open + arguments.stalled + arguments.clients + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))
    machine = benchlib.describe_machine()

    def limit_descriptors() -> None:
        """Limits the open files of the server, in which this runs."""
        if arguments.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptors, arguments.descriptors))

    with tempfile.TemporaryDirectory() as folder:
        server, port = benchlib.start_server(arguments, folder, limit_descriptors)
        try:
            idle = benchlib.process_memory(server.pid)
            tally, memory, stop_seconds = asyncio.run(measure(arguments, server, port))
            exit_status = server.wait(timeout=60)
        finally:
            # Without effect unless this script was interrupted or the server does not stop.
            server.kill()
    seconds = tally.seconds
    figures = {
        "half_open": arguments.half_open, "stalled": arguments.stalled, "clients": arguments.clients,
        "seconds": arguments.seconds, "descriptors": arguments.descriptors,
        "answered": len(seconds), "reconnected": tally.reconnected, "problems": len(tally.problems),
        "first_problems": tally.problems[:3],
        **benchlib.percentiles(seconds),
        "half_open_connections": tally.half_open, "stalled_uploads": tally.stalled, "stalled_408": tally.stalled_408,
        "memory_idle_mib": benchlib.mebibytes(idle, "VmRSS"), "memory_peak_mib": benchlib.mebibytes(memory, "VmHWM"),
        "stop_seconds": round(stop_seconds, 2), "exit_status": exit_status,
        "versions": {"trueshot": benchlib.trueshot_version(arguments.trueshot)}, "machine": machine,
    }
    missed = [name for name, bar in LIMITS.items() if figures[name] is None or figures[name] > bar]
    print(json.dumps({**figures, "bars": LIMITS, "missed": missed}, indent=1))
    sys.exit(1 if missed or tally.problems or exit_status != 0 else 0)


if __name__ == "__main__":
    main()
