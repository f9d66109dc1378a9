#!/usr/bin/env python3
"""How much longer a tenant waits for its first token when another one asks for all that it can get: of equal weight, with endless answers on more
streams than a step has rows. Waits are told in steps of the loaded server, since that is what the scheduler promises: one more. Nothing here passes
or fails.

    /usr/bin/python3 tests/e2e/greedy_latency.py --model perf.gguf      one whose step takes some milliseconds, against build/bin
"""
import argparse
import contextlib
import pathlib
import threading
import time

import attacks
import binaries
from binaries import Server
import python_package  # noqa: F401  where the stubs are, for the imports that follow

import grpc
from ebb.v1 import admin_pb2 as admin, inference_pb2 as inference, sampling_pb2 as sampling


class Tenant(attacks.Client):
    def __init__(self, addr, name):
        super().__init__(addr)
        self.metadata = [("x-ebb-tenant", name)]

    def answer(self, stopping):
        return self.Generate(inference.GenerateRequest(prompt=attacks.TEXT, policy=attacks.SMALL, block_size=8, stopping=stopping), metadata=self.metadata)

    def first_token(self):
        """Seconds until it comes, of an answer of one token; and the server's account of them: in the queue, for the prompt, for the token."""
        begin = time.monotonic()
        came = None
        for message in self.answer(sampling.Stopping(max_tokens=1, ignore_eos=True)):
            if message.HasField("decode"):
                came = came or time.monotonic() - begin
            if message.decode.HasField("timings"):
                told = message.decode.timings
                queue, prefill, token = (took.ToTimedelta().total_seconds() for took in (told.queue, told.prefill, told.time_to_first_token))
                return came, queue, prefill, token - queue - prefill
        raise AssertionError("an answer without an end")

    def steps(self):
        return self.GetStatus(admin.GetStatusRequest(), metadata=self.metadata).work.steps


def read(stream):
    with contextlib.suppress(grpc.RpcError):  # it is cancelled
        for _ in stream:
            pass


def waits(tenant, count):
    """Of each part of first tokens, sorted."""
    return [sorted(part) for part in zip(*(tenant.first_token() for _ in range(count)))]


def measure(model, count, rows, endless):
    binaries.MODEL = model
    with Server(f"--scheduling.rows_max={rows}", "--cache.arena=512MiB", "--store.durability=off", "--tenants.meek.weight=1", "--tenants.greedy.weight=1", chatty=True) as server:
        meek, greedy = (Tenant(server.addr, name) for name in ("meek", "greedy"))
        waits(meek, 3)
        alone = waits(meek, count)
        streams = [greedy.answer(attacks.ENDLESS) for _ in range(endless)]
        readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        while greedy.running() < endless:
            time.sleep(0.01)
        time.sleep(2)  # their prompts
        begin, steps = time.monotonic(), greedy.steps()
        beside = waits(meek, count)
        step = (time.monotonic() - begin) / (greedy.steps() - steps)
        print(f"{rows} rows a step, {endless} endless streams of another tenant, {count} first tokens each; a loaded step takes {1e3 * step:.1f} ms\n\n"
              "| first token | p50, ms | p99, ms | p99, loaded steps | p50 of the queue | of the prompt | of the token |\n|---|---|---|---|---|---|---|")
        for name, told in (("alone", alone), ("beside", beside)):
            p50, *parts = (part[len(part) // 2] for part in told)
            p99 = told[0][len(told[0]) * 99 // 100]
            print(f"| {name} | {1e3 * p50:.1f} | {1e3 * p99:.1f} | {p99 / step:.2f} |" + "".join(f" {1e3 * part:.1f} |" for part in parts))
        for stream in streams:
            stream.cancel()
        for reader in readers:
            reader.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path, default=binaries.MODEL)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rows", type=int, default=16, help="of a step")
    parser.add_argument("--streams", type=int, default=32, help="of the tenant that asks for all")
    told = parser.parse_args()
    measure(told.model, told.count, told.rows, told.streams)
