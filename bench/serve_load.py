#!/usr/bin/env python3
"""Many clients audit embedding sets on a server at once: python3 bench/serve_load.py TRUESHOT [--clients 200] [--seconds 60]

Starts `trueshot serve` on a free port, lets every client send one audit after the other, and says how many were
answered, how many were told to come again (429 or 503 with Retry-After), whether anything else happened, how long
answers took, and how much memory the server used at most. Only the standard library.
"""

import argparse
import asyncio
import json
import platform
import random
import subprocess
import sys
import tempfile
import time


def support_set(seed: int, ways: int, shots: int, dim: int) -> bytes:
    """A noisy support set: every class is a cloud, one label in five is another class's."""
    draw = random.Random(seed)
    places = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(ways)]
    rows, labels = [], []
    for way in range(ways):
        for _ in range(shots):
            rows.append([round(value + draw.gauss(0, 0.8), 5) for value in places[way]])
            labels.append(f"class {(way + (draw.random() < 0.2)) % ways}")
    return json.dumps({"rows": rows, "labels": labels}).encode()


async def ask(host: str, port: int, body: bytes, reader, writer):
    """One request on a connection that is kept; returns the status, the headers and the length of the answer."""
    head = f"POST /api/v1/audit HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    answer = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, answer


async def client(number: int, port: int, bodies: list, until: float, tally: dict):
    host = "127.0.0.1"
    reader = writer = None
    turn = number
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(host, port)
            status, headers, answer = await ask(host, port, bodies[turn % len(bodies)], reader, writer)
        except (OSError, EOFError, asyncio.IncompleteReadError, ValueError, KeyError) as problem:
            tally["broken"].append(repr(problem))
            writer = None
            continue
        turn += 1
        if status == 200:
            tally["seconds"].append(time.monotonic() - began)
            if b'"expected_wrong"' not in answer:
                tally["broken"].append("an answer without its contents")
        elif status in (429, 503) and "retry-after" in headers:
            tally["later"] += 1
            await asyncio.sleep(float(headers["retry-after"]))
        else:
            tally["broken"].append(f"{status}: {answer[:200]!r}")
    if writer:
        writer.close()


def memory(pid: int, key: str) -> float:
    """MiB of a process, now (VmRSS) or at most (VmHWM)."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key))


async def load(options, port: int) -> dict:
    bodies = [support_set(seed, options.ways, options.shots, options.dim) for seed in range(32)]
    tally = {"seconds": [], "later": 0, "broken": []}
    until = time.monotonic() + options.seconds
    await asyncio.gather(*(client(number, port, bodies, until, tally) for number in range(options.clients)))
    tally["body"] = len(bodies[0])
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trueshot")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--serve", default="", help="more options of `trueshot serve`, in one string")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [options.trueshot, "serve", "--port", "0", "--data-dir", folder, "--no-cache", *options.serve.split()]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = int(server.stdout.readline().strip().rsplit(":", 1)[1])
        idle = memory(server.pid, "VmRSS")
        tally = asyncio.run(load(options, port))
        alive = server.poll() is None
        peak = memory(server.pid, "VmHWM") if alive else float("nan")
        after = memory(server.pid, "VmRSS") if alive else float("nan")
        server.terminate()
        stopped = server.wait(timeout=30)
    seconds = sorted(tally["seconds"])
    at = lambda share: round(1000 * seconds[min(len(seconds) - 1, int(share * len(seconds)))]) if seconds else None
    print(json.dumps({
        "clients": options.clients, "seconds": options.seconds,
        "set": f"{options.ways} classes of {options.shots} rows of {options.dim} numbers, {tally['body']} bytes of JSON",
        "answered": len(seconds), "answered_per_second": round(len(seconds) / options.seconds, 1),
        "told_to_come_again": tally["later"], "anything_else": len(tally["broken"]), "first_of_these": tally["broken"][:3],
        "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "longest_ms": at(1),
        "memory_idle_mib": round(idle), "memory_peak_mib": round(peak), "memory_after_mib": round(after),
        "server_alive": alive, "exit_status": stopped, "machine": platform.processor() or platform.machine(),
    }, indent=2))
    sys.exit(0 if alive and not tally["broken"] and stopped == 0 else 1)


if __name__ == "__main__":
    main()
