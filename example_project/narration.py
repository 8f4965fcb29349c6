"""How the demo tells its story: one live screen on a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

TITLE = "celery-singlebeat: beat on every server, at most one of them leads"
#: How many events the screen shows: the whole of it fits into 80 by 24 characters.
_EVENTS = 9
#: How wide the moment before each event is, and the panel's frame.
_MOMENT, _FRAME = 9, 4
#: Plain lines are not wrapped: whatever reads them can do that.
_UNWRAPPED = 1_000

_STYLES = {"leads": "bold green", "stands by": "cyan", "works": "cyan", "starts": "yellow"}
_TROUBLE = "bold red"


@dataclass(frozen=True, slots=True)
class Player:
    """One process as the screen shows it."""

    name: str
    pid: int | None
    role: str
    remark: str = ""


@dataclass(slots=True)
class Scene:
    """What the screen shows now."""

    players: Sequence[Player] = ()
    counters: dict[str, int] = field(default_factory=dict)


class Narrator:
    """A context manager that shows a scene and says what happens.

    `console` decides: on a terminal that takes colours it draws one live screen, otherwise lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or make_console()
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._began = time.monotonic()
        self._events: deque[Text] = deque(maxlen=_EVENTS)
        self._scene = Scene()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self.is_live:
            self._live = Live(
                get_renderable=self._screen,
                console=self._console,
                refresh_per_second=8,
                vertical_overflow="crop",
            )
            self._live.start()
        else:
            self._print(TITLE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Tell one event."""
        line = Text.assemble((f"{self.elapsed:5.1f} s  ", "dim"), (text, style))
        if self._live is None:
            self._print(line.plain)
        else:
            self._events.append(line)

    def show(self, scene: Scene) -> None:
        """Show this from now on; plain lines show nothing of it."""
        self._scene = scene

    def conclude(self, tables: RenderableType) -> None:
        """Show the last tables, below the story."""
        self._console.print()
        if self.is_live:
            self._console.print(tables)
            return
        with self._console.capture() as captured:
            self._console.print(tables)
        for line in captured.get().splitlines():  # without the blanks that fill the last column
            self._print(line.rstrip())

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    # -- the screen -----------------------------------------------------------------------------

    def _screen(self) -> RenderableType:
        body = Group(
            self._players(),
            Rule(style="dim"),
            self._counters(),
            Rule(style="dim"),
            *self._tail(),
        )
        return Panel(body, title=TITLE, subtitle=f"{self.elapsed:.0f} s, Ctrl-C ends it", width=self._width())

    def _width(self) -> int:
        return min(self._console.width, 100)

    def _players(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(width=10)
        table.add_column(width=12, style="dim")
        table.add_column(width=12)
        table.add_column(no_wrap=True)
        for player in self._scene.players:
            style = _STYLES.get(player.role, _TROUBLE)
            pid = "" if player.pid is None else f"pid {player.pid}"
            table.add_row(player.name, pid, Text(player.role, style=style), Text(player.remark, style="dim"))
        return table

    def _counters(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in self._scene.counters:
            table.add_column(name, justify="right")
        table.add_row(*map(str, self._scene.counters.values()))
        return table

    def _tail(self) -> list[RenderableType]:
        """The newest events that fit, as lines with a hanging indent."""
        room, lines = _EVENTS, deque[Table]()
        for event in reversed(self._events):
            _, told = event.divide([_MOMENT])
            height = len(told.wrap(self._console, self._width() - _FRAME - _MOMENT))
            if height > room:
                break
            room -= height
            lines.appendleft(_hanging(event))
        return [*lines, *(Text(" ") for _ in range(room))]


def _hanging(event: Text) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 0, 0, 0))
    table.add_column(width=_MOMENT)
    table.add_column()
    table.add_row(*event.divide([_MOMENT]))
    return table


def make_console() -> Console:
    """A console for standard output: a live one on a terminal, unless NO_COLOR is set."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return Console(highlight=False)
    return Console(force_terminal=False, color_system=None, width=_UNWRAPPED, highlight=False)
