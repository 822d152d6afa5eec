#!/usr/bin/env python3
"""Honest clients beside clients that keep the server waiting: python3 bench/serve_slow.py TRUESHOT [--descriptors 256]

Starts `trueshot serve` on a free port. 1,000 connections send half a header, 50 uploads announce 64 MiB and send one
byte; each that the server closes is opened again after a second. Meanwhile 20 clients send one small audit after the
other. Prints how long the honest clients waited, what else happened to them, the server's peak memory and how long it
takes to stop while the others are still connected. Exit status 1 if a bar is missed. Only the standard library.
"""

import argparse
import asyncio
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time

SUPPORT = json.dumps({
    "rows": [[1, 0, 0], [0.9, 0.1, 0], [0.8, 0.2, 0.1], [0, 1, 0], [0.1, 0.9, 0.2], [0.9, 0, 0.1]],
    "labels": ["a", "a", "a", "b", "b", "b"],
}).encode()
BARS = {"p99_ms": 2000, "memory_peak_mib": 400, "stop_seconds": 3}


async def half_open(port: int, tally: dict):
    """A connection that sends the beginning of a header and then nothing."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            tally["half_open_connections"] += 1
            writer.write(b"POST /api/v1/audit HTTP/1.1\r\nhost: 127.0.0.1\r\nx-")
            await reader.read()
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(1)


async def stalled(port: int, tally: dict):
    """An upload that announces 64 MiB and sends one byte."""
    head = f"POST /api/v1/audit HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {64 << 20}\r\n\r\n"
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            tally["stalled_uploads"] += 1
            writer.write(head.encode() + b"{")
            answer = await reader.read()
            tally["stalled_answered_408"] += answer.startswith(b"HTTP/1.1 408")
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(1)


async def ask(port: int, reader, writer):
    """One audit; returns its status."""
    head = f"POST /api/v1/audit HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(SUPPORT)}\r\n\r\n"
    writer.write(head.encode() + SUPPORT)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(": ")[1]) for line in lines if line.lower().startswith("content-length"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


async def honest(number: int, port: int, until: float, tally: dict):
    """Small audits, one after the other; every second client opens a connection for each of them. A connection that is
    closed before an answer begins is opened again, as browsers do, and the time goes on."""
    reader = writer = None
    began = None
    while time.monotonic() < until:
        began = began or time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status = await ask(port, reader, writer)
            tally["seconds"].append(time.monotonic() - began)
            if status != 200:
                tally["other"].append(str(status))
        except (ConnectionError, asyncio.IncompleteReadError) as problem:
            if isinstance(problem, asyncio.IncompleteReadError) and problem.partial:
                tally["other"].append(repr(problem))
            tally["asked_again"] += 1
            writer = None
            continue
        began = None
        if status != 200 or number % 2:
            if writer:
                writer.close()
            writer = None
        # A person or a program does something with an answer.
        await asyncio.sleep(0.05)
    if writer:
        writer.close()


def memory(pid: int, key: str) -> float:
    """MiB of a process, now (VmRSS) or at most (VmHWM)."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key))


async def run(options, server, port: int) -> dict:
    tally = {"seconds": [], "other": [], "asked_again": 0, "half_open_connections": 0, "stalled_uploads": 0, "stalled_answered_408": 0}
    idle = memory(server.pid, "VmRSS")
    slow = [asyncio.create_task(half_open(port, tally)) for _ in range(options.half_open)]
    slow += [asyncio.create_task(stalled(port, tally)) for _ in range(options.stalled)]
    await asyncio.sleep(2)
    until = time.monotonic() + options.seconds
    await asyncio.gather(*(honest(number, port, until, tally) for number in range(options.clients)))
    tally["memory_idle_mib"], tally["memory_peak_mib"] = round(idle), round(memory(server.pid, "VmHWM"))
    began = time.monotonic()
    server.terminate()
    while server.poll() is None and time.monotonic() - began < 60:
        await asyncio.sleep(0.01)
    tally["stop_seconds"] = round(time.monotonic() - began, 2)
    for task in slow:
        task.cancel()
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trueshot")
    parser.add_argument("--half-open", type=int, default=1000)
    parser.add_argument("--stalled", type=int, default=50)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--descriptors", type=int, help="start the server with `ulimit -n` at this number")
    parser.add_argument("--serve", default="", help="more options of `trueshot serve`, in one string")
    options = parser.parse_args()
    needed = options.half_open + options.stalled + options.clients + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))

    def limit():
        if options.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (options.descriptors, options.descriptors))

    with tempfile.TemporaryDirectory() as folder:
        command = [options.trueshot, "serve", "--port", "0", "--data-dir", folder, "--no-cache", *options.serve.split()]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=limit)
        port = int(server.stdout.readline().strip().rsplit(":", 1)[1])
        tally = asyncio.run(run(options, server, port))
        status = server.wait(timeout=60)
    seconds = sorted(tally.pop("seconds"))
    at = lambda share: round(1000 * seconds[min(len(seconds) - 1, int(share * len(seconds)))]) if seconds else None
    other = tally.pop("other")
    figures = {
        "half_open": options.half_open, "stalled": options.stalled, "clients": options.clients, "seconds": options.seconds,
        "descriptors": options.descriptors, "answered": len(seconds), "anything_else": len(other), "first_of_these": other[:3],
        "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "longest_ms": at(1), **tally,
        "exit_status": status, "machine": platform.processor() or platform.machine(),
    }
    missed = [name for name, bar in BARS.items() if figures[name] is None or figures[name] > bar]
    print(json.dumps({**figures, "bars": BARS, "missed": missed}, indent=2))
    sys.exit(1 if missed or status != 0 else 0)


if __name__ == "__main__":
    main()
