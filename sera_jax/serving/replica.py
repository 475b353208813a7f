"""One device's share of the engine: continuous batching over the slots of its KV cache.

A replica is a thread that owns its cache. Others talk to it by messages, which it reads between
two device calls; so nothing here needs a lock, and weights never change inside a call.
"""

import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from sera_jax.serving.decoding import Weights
from sera_jax.serving.device import Device
from sera_jax.serving.requests import MAX_STOPS, Request
from sera_jax.serving.slots import Move, Slots


@dataclass(eq=False)
class Running:
    """A request in a slot. `sequence` grows only while nothing of it waits for prefill."""

    request: Request
    slot: int
    sequence: np.ndarray
    done: int  # tokens of the sequence that are in the cache


class Replica(threading.Thread):
    def __init__(
        self,
        device: Device,
        deliver: Callable[[list[Request]], None],
        version: str,
    ):
        super().__init__(daemon=True, name=device.name)
        self.device, self.shapes, self.version = device, device.shapes, version
        self.slots = Slots(self.shapes.slots, self.shapes.context, self.shapes.parked)
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Running] = {}  # decoding, by slot
        self.prefilling: list[Running] = []
        self.paused = False
        self.failure: str | None = None
        self._deliver = deliver
        self._finished: list[Request] = []
        self._updates: deque[tuple] = deque()  # they wait until nothing runs

    # ---- messages ------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Requests here; read by other threads, so only roughly right."""
        return len(self.running) + len(self.prefilling) + len(self.waiting) + self.inbox.qsize()

    def submit(self, request: Request) -> None:
        self.inbox.put((self.waiting.append, (request,), None))

    def call(self, method: Callable, *args) -> Future:
        """Runs a method of this replica between two device calls."""
        future: Future = Future()
        self.inbox.put((method, args, future))
        return future

    def pause(self, mode: str) -> None:
        self.paused = True
        if mode == "abort":
            self.abort(lambda request: True)
        elif mode == "retract":
            self._retract()

    def resume(self) -> None:
        self.paused = False

    def flush(self) -> None:
        self.slots.forget()

    def abort(self, matches: Callable[[Request], bool], message: str = "Aborted") -> None:
        for request in [r for r in self.waiting if matches(r)]:
            self.waiting.remove(request)
            request.abort(message)
            self._finish(request)
        for entry in [*self.prefilling, *self.running.values()]:
            if matches(entry.request):
                entry.request.abort(message)
                self._leave(entry)

    def update(self, weights: Weights, version: str, flush: bool, done: Future) -> None:
        """Swaps the weights when nothing runs, or at once while paused."""
        self._updates.append((weights, version, flush, done))

    def _retract(self) -> None:
        """Running requests return to the queue's head; they resume with what they have."""
        entries = sorted([*self.prefilling, *self.running.values()], key=lambda e: e.slot)
        for entry in reversed(entries):
            entry.request.retractions += 1
            self.slots.release(entry.slot)
            self.waiting.appendleft(entry.request)
        self.prefilling, self.running = [], {}

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while True:
                self._turn()
        except Exception as error:  # the device's state is unknown: nothing here can go on
            traceback.print_exc()
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            while True:  # refuse whatever still comes
                self.abort(lambda request: True, f"engine failed: {self.failure}")
                self._hand_over()
                self._read_messages(block=True)

    def _turn(self) -> None:
        self._read_messages(block=not self._can_work())
        self._apply_updates()
        if not self.paused:
            self._admit_and_prefill()
            self._decode_running()
        self._hand_over()

    def _hand_over(self) -> None:
        if self._finished:
            done, self._finished = self._finished, []
            self._deliver(done)

    def _can_work(self) -> bool:
        runs = self.running or self.prefilling or self.waiting
        return bool(self._updates or (runs and not self.paused))

    def _read_messages(self, block: bool) -> None:
        while block or not self.inbox.empty():
            method, args, future = self.inbox.get()
            block = False
            try:
                result = method(*args)
                if future is not None:
                    future.set_result(result)
            except Exception as error:  # the caller's to show; the loop goes on
                if future is None:
                    raise
                future.set_exception(error)

    def _apply_updates(self) -> None:
        while self._updates and (self.paused or not (self.running or self.prefilling)):
            self.device.weights, self.version, flush, done = self._updates.popleft()
            if flush:
                self.flush()
            done.set_result(None)

    # ---- prefill -------------------------------------------------------------------------------

    def _admit_and_prefill(self) -> None:
        while True:
            rows = self._admit()
            if not rows:
                return
            self._prefill_rows(rows)
            if not self.inbox.empty():
                self._read_messages(block=False)
                if self.paused:
                    return

    def _admit(self) -> list[tuple[Running, int, int]]:
        """The next call's rows (entry, first token, number of tokens).

        A request gets its slot only when its first row fits into this very call, so that nothing
        can overwrite what it copies before it does.
        """
        s = self.shapes
        rows, moves = [], []
        for entry in self.prefilling:
            self._add_rows(rows, entry)
        # An update that waits for running requests lets no new ones in.
        while len(rows) < s.rows and self.waiting and not self._updates:
            request = self.waiting[0]
            sequence = request.sequence()
            limit = len(sequence) - 1
            if request.scoring:
                limit = min(limit, request.logprob_start_len)
            move = self.slots.admit(sequence, limit)
            if move is None:
                break
            self.waiting.popleft()
            moves.append(move)
            if request.cached_tokens is None:
                request.cached_tokens = move.reused
            entry = Running(request, move.slot, sequence, move.reused)
            self.prefilling.append(entry)
            self._add_rows(rows, entry)
        self._copy(moves)
        return rows

    def _add_rows(self, rows, entry: Running) -> None:
        begin = entry.done
        while begin < len(entry.sequence) and len(rows) < self.shapes.rows:
            count = min(self.shapes.chunk, len(entry.sequence) - begin)
            rows.append((entry, begin, count))
            begin += count

    def _copy(self, moves: list[Move]) -> None:
        loads = [(move.load_from, move.slot) for move in moves if move.load_from >= 0]
        saves = [(move.slot, move.save_to) for move in moves if move.save_to >= 0]
        if loads or saves:
            longest = max(max(move.saved, move.reused) for move in moves)
            self.device.copy(loads, saves, self.shapes.bucket(longest))
        self.slots.settle(moves)

    def _prefill_rows(self, rows: list[tuple[Running, int, int]]) -> None:
        s = self.shapes
        score = any(entry.request.scoring for entry, *_ in rows)
        count = s.few_rows if len(rows) <= s.few_rows and not score else s.rows
        tokens, table = s.prefill_arrays(count)
        temperature = np.ones(count, np.float32)
        for index, (entry, begin, count) in enumerate(rows):
            piece = entry.sequence[begin : begin + s.chunk + 1]
            tokens[index, : len(piece)] = piece
            table[index] = entry.slot, begin, count, entry.request.seed
            temperature[index] = entry.request.temperature
        end = max(begin + count for _, begin, count in rows)
        blocks = s.blocks if score else s.bucket(end)
        sampled, logprobs, scores = self.device.prefill(tokens, table, temperature, blocks, score)
        for index, (entry, begin, count) in enumerate(rows):
            entry.done = begin + count
            self.slots.lengths[entry.slot] = entry.done
            if entry.request.scoring:
                successors = range(begin + 1, begin + count + 1)
                entry.request.prompt_logprobs.update(zip(successors, scores[index], strict=False))
            if entry.done == len(entry.sequence):
                self._prefilled(entry, sampled[index], logprobs[index])

    def _prefilled(self, entry: Running, token: int, logprob: float) -> None:
        """The prompt is in the cache, and its last position has given the first token."""
        self.prefilling.remove(entry)
        request = entry.request
        if request.wanted <= 0:  # only scores were asked for
            request.finish_at_length()
            self._leave(entry)
            return
        self.running[entry.slot] = entry
        self._append(entry, [token], [logprob])

    # ---- decode --------------------------------------------------------------------------------

    def _decode_running(self) -> None:
        if not self.running:
            return
        s = self.shapes
        entries = list(self.running.values())
        few = len(entries) <= s.few_slots < s.slots
        count = s.few_slots if few else s.slots
        slots = np.zeros(count, np.int32)
        state = np.zeros((count, 4 + MAX_STOPS), np.int32)
        temperature = np.ones(count, np.float32)
        rows = range(len(entries)) if few else [entry.slot for entry in entries]
        for row, entry in zip(rows, entries, strict=True):
            request, length = entry.request, self.slots.lengths[entry.slot]
            slots[row] = entry.slot
            state[row, :4] = request.output_ids[-1], length, request.seed, request.wanted
            state[row, 4:] = request.device_stops
            temperature[row] = request.temperature
        end = min(int(state[:, 1].max()) + s.steps, s.context)
        tokens, logprobs = self.device.decode(
            state, temperature, slots if few else None, s.bucket(end)
        )
        for row, entry in zip(rows, entries, strict=True):
            new = [token for token in tokens[row] if token >= 0]
            self.slots.lengths[entry.slot] += len(new)
            self._append(entry, new, logprobs[row])

    def _append(self, entry: Running, tokens: list[int], logprobs: list[float]) -> None:
        request, slot = entry.request, entry.slot
        for token, logprob in zip(tokens, logprobs, strict=False):
            position = len(request.input_ids) + len(request.output_ids)
            if position < self.shapes.context:
                self.slots.ids[slot, position] = token
            if request.append(token, logprob, self.version):
                self._leave(entry)
                return

    def _leave(self, entry: Running) -> None:
        """The request is finished; its tokens stay in the slot."""
        slot = entry.slot
        if self.running.pop(slot, None) is None and entry in self.prefilling:
            self.prefilling.remove(entry)
        # The last token was never fed, and tokens past a stop were cut off.
        known = len(entry.request.input_ids) + len(entry.request.output_ids)
        self.slots.lengths[slot] = min(int(self.slots.lengths[slot]), known)
        self.slots.release(slot)
        self._finish(entry.request)

    def _finish(self, request: Request) -> None:
        request.weight_version = self.version
        if request.cached_tokens is None:
            request.cached_tokens = 0
        self._finished.append(request)
