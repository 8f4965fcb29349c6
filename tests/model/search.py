"""Walk every state, breadth first; so the first trace that breaks something is a shortest one."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.invariants import broken, reached, watched
from tests.model.server import Guards
from tests.model.steps import Step, steps
from tests.model.world import Scope, State, canonical, initial


class Walk(NamedTuple):
    """What a walk saw. `broken` is empty if nothing is wrong; `complete`: nothing was left out."""

    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool
    broken: str = ""
    trace: tuple[Step, ...] = ()
    stuck: int = 0

    def told(self) -> str:
        """Tell the trace, one step a line."""
        lines = [f"{number:3d}. {step.who:6s} {step.text}" for number, step in enumerate(self.trace, start=1)]
        return "\n".join([*lines, f"     => {self.broken}"])


def walk(
    scope: Scope,
    guards: Guards = Guards(),  # noqa: B008 - it is a tuple
    *,
    resend: bool = False,
    liveness: bool = False,
    dead: bool = True,
    limit: int = 5_000_000,
) -> Walk:
    """Walk from the initial state until something is broken, or everything was seen.

    `resend` asks more than G1 does: what vanished in a loss is sent again. `liveness`: from every state in
    which a node is up, work alone leads to all messages.
    """
    return _Walker(scope, guards, resend=resend, liveness=liveness, dead=dead).walk(limit)


class _Walker:
    def __init__(self, scope: Scope, guards: Guards, *, resend: bool, liveness: bool, dead: bool) -> None:
        self.scope, self.guards, self.resend, self.liveness, self.dead = scope, guards, resend, liveness, dead
        self.index: dict[State, int] = {}
        self.seen: list[State] = []
        self.parents = array("i")
        self.edges = (array("I"), array("I"))  # of work: from, to
        self.kept: dict[Any, Any] = {}
        self.transitions = 0
        self.began = time.perf_counter()

    def walk(self, limit: int) -> Walk:
        self._add(self._canonical(initial(self.scope)), -1)
        depth, frontier = 0, [0]
        while frontier:
            reached_now: list[int] = []
            for source in frontier:
                problem = self._expand(source, reached_now)
                if problem:
                    return self._result(depth + 1, problem, self._path(source))
                if len(self.seen) > limit:
                    return self._result(depth + 1, complete=False)
            frontier = reached_now
            depth += bool(frontier)
        if self.liveness:
            stuck = self._stuck()
            if stuck:
                text = f"no work leads from here to all messages (one of {len(stuck)} such states)"
                return self._result(depth, text, self._path(stuck[0]), stuck=len(stuck))
        return self._result(depth)

    def _canonical(self, state: State) -> State:
        return canonical(state, self.guards, dead=self.dead)

    def _expand(self, source: int, reached_now: list[int]) -> str:
        for step in steps(self.seen[source], self.scope, self.guards):
            self.transitions += 1
            state = self._canonical(step.state)
            target = self.index.get(state)
            if target is None:
                problem = broken(step.state, self.scope, self.guards, resend=self.resend)
                if problem:
                    return problem
                target = self._add(state, source)
                reached_now.append(target)
            if self.liveness and step.work and target != source:
                self.edges[0].append(source)
                self.edges[1].append(target)
        return ""

    def _add(self, state: State, parent: int) -> int:
        """Take a state in; equal parts of states are one object, so that they cost their memory once."""
        kept = self.kept
        nodes = tuple([kept.setdefault(node, node) for node in state.nodes])
        server, saved = state.server, state.saved
        state = state._replace(
            server=kept.setdefault(server, server),
            saved=kept.setdefault(saved, saved),
            nodes=kept.setdefault(nodes, nodes),
            strays=kept.setdefault(state.strays, state.strays),
            broker=kept.setdefault(state.broker, state.broker),
            gone=kept.setdefault(state.gone, state.gone),
            ran=kept.setdefault(state.ran, state.ran),
        )
        number = self.index[state] = len(self.seen)
        self.seen.append(state)
        self.parents.append(parent)
        return number

    def _result(
        self, depth: int, problem: str = "", path: Any = (), *, complete: bool = True, stuck: int = 0
    ) -> Walk:
        seconds = time.perf_counter() - self.began
        trace = tuple(self._told(path)) if problem else ()
        complete = complete and (not problem or bool(stuck))
        return Walk(len(self.seen), self.transitions, depth, seconds, complete, problem, trace, stuck)

    def _path(self, number: int) -> list[State]:
        path = []
        while number > 0:
            path.append(self.seen[number])
            number = self.parents[number]
        return path[::-1]

    def _told(self, path: list[State]) -> Iterator[Step]:
        """The same path with nodes and epochs that keep their names, and the step that broke it."""
        state = initial(self.scope)
        for wanted in path:
            step = next(
                s for s in steps(state, self.scope, self.guards) if self._canonical(s.state) == wanted
            )
            yield step
            state = step.state
        for step in steps(state, self.scope, self.guards):
            if broken(step.state, self.scope, self.guards, resend=self.resend):
                yield step
                return

    def _stuck(self) -> list[int]:
        """States in which a node is up, and from which no work leads to all messages."""
        sources, targets = self.edges
        starts = array("I", bytes(4 * (len(self.seen) + 1)))
        for target in targets:
            starts[target + 1] += 1
        for number in range(len(self.seen)):
            starts[number + 1] += starts[number]
        places = array("I", starts)
        before = array("I", bytes(4 * len(sources)))
        for source, target in zip(sources, targets, strict=True):
            before[places[target]] = source
            places[target] += 1
        good = bytearray(len(self.seen))
        todo = [
            number for number, state in enumerate(self.seen) if reached(state, self.scope, resend=self.resend)
        ]
        for number in todo:
            good[number] = 1
        while todo:
            number = todo.pop()
            for source in before[starts[number] : starts[number + 1]]:
                if not good[source]:
                    good[source] = 1
                    todo.append(source)
        return [number for number, state in enumerate(self.seen) if not good[number] and watched(state)]
