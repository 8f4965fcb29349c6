"""The history as a picture, in characters and as SVG: replicas as lanes, leaders, faults, messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tests.torture.checker import Violation

_COLUMNS = 100
_BARS = " ▁▂▃▄▅▆▇█"
_LANE, _LEFT, _TOP = 26, 70, 34
_COLOURS = {
    "process": "#888888",
    "network": "#e08a1e",
    "server": "#b03060",
    "broker": "#7a5230",
    "all": "#3a6ea5",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in seconds of the history; `lane` is a replica, or -1 for the server."""

    lane: int
    start: float
    end: float
    name: str = ""
    hits: str = ""


@dataclass(slots=True)
class Drawing:
    """What there is to draw."""

    length: float = 0.0
    replicas: int = 0
    title: str = ""
    lives: list[Span] = field(default_factory=list)
    leads: list[Span] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    sent: Counter[int] = field(default_factory=Counter)  # second -> messages
    violations: Sequence[Violation] = ()


def draw(records: Iterable[Mapping[str, Any]], violations: Sequence[Violation]) -> Drawing:
    """Collect what a picture needs from a history."""
    drawing = Drawing(violations=violations)
    pencil = _Pencil(drawing)
    for record in records:
        drawing.length = record["t"]
        getattr(pencil, "see_" + record["k"], lambda _: None)(record)
    pencil.finish()
    return drawing


class _Pencil:
    """Remembers what has begun and not ended yet."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._lanes: dict[int, int] = {}
        self._alive: dict[int, float] = {}
        self._faults: dict[int, Mapping[str, Any]] = {}
        self._leads: tuple[int, float] | None = None

    def see_run(self, record: Mapping[str, Any]) -> None:
        self._drawing.replicas, self._drawing.title = record["replicas"], record["command"]

    def see_m(self, record: Mapping[str, Any]) -> None:
        self._drawing.sent[int(record["t"])] += 1

    def see_process(self, record: Mapping[str, Any]) -> None:
        index, t = record["index"], record["t"]
        if record["phase"] == "start":
            self._lanes[record["pid"]] = index
            self._alive[index] = t
        else:
            self._drawing.lives.append(Span(index, self._alive.pop(index, t), t))

    def see_lead(self, record: Mapping[str, Any]) -> None:
        pid, t = record["pid"], record["t"]
        if self._leads is not None:
            self._drawing.leads.append(Span(*self._leads, t))
        self._leads = (self._lanes[pid], t) if pid in self._lanes else None

    def see_fault(self, record: Mapping[str, Any]) -> None:
        if record["phase"] == "begin":
            self._faults[record["id"]] = record
        elif record["id"] in self._faults:
            self._drawing.faults.append(_fault(self._faults.pop(record["id"]), record["t"]))

    def finish(self) -> None:
        drawing, end = self._drawing, self._drawing.length
        drawing.lives += [Span(index, start, end) for index, start in self._alive.items()]
        drawing.faults += [_fault(record, end) for record in self._faults.values()]
        if self._leads is not None:
            drawing.leads.append(Span(*self._leads, end))


def _fault(record: Mapping[str, Any], end: float) -> Span:
    lane = record["target"] if record["hits"] in {"process", "network"} else -1
    return Span(lane, record["t"], end, record["name"], record["hits"])


def text(drawing: Drawing) -> list[str]:
    """The picture in characters, about a hundred wide."""
    width = min(_COLUMNS, max(20, int(drawing.length)))
    scale = max(drawing.length, 0.001) / width

    def columns(span: Span) -> range:
        first = min(width - 1, int(span.start / scale))
        return range(first, max(first + 1, min(width, int(span.end / scale))))

    lines = [
        f"one column is {scale:.2f} s;  - up, L leads, s stopped, ~ network, c clock, x down;  ! violation"
    ]
    for lane in range(-1, drawing.replicas):
        row = [" " if lane < 0 else "x"] * width
        layers = [(drawing.lives, "-"), (drawing.leads, "L"), (drawing.faults, "")]
        for spans, mark in layers:
            for span in spans:
                if span.lane == lane and (character := mark or _mark(span)):
                    for column in columns(span):
                        row[column] = character
        lines.append(f"{'server' if lane < 0 else f'beat{lane}':>7s} {''.join(row)}")
    heights = [0.0] * width
    for second, number in drawing.sent.items():
        heights[min(width - 1, int(second / scale))] += number
    most = max(heights) or 1
    lines.append(f"{'sent':>7s} " + "".join(_BARS[round(8 * height / most)] for height in heights))
    if drawing.violations:
        row = [" "] * width
        for violation in drawing.violations:
            row[max(0, min(width - 1, int(violation.t / scale)))] = "!"
        lines.append(f"{'':7s} {''.join(row)}")
    return lines


def _mark(fault: Span) -> str:
    if fault.name in {"kill", "term"}:
        return ""  # the gap in the replica's life shows it
    if fault.name == "roll":
        return "r"
    if "clock" in fault.name:
        return "c"
    return {"process": "s", "network": "~", "server": fault.name[0].upper()}.get(fault.hits, "#")


def svg(drawing: Drawing) -> str:
    """The picture as SVG; names of faults are shown under the pointer."""
    width = max(1000.0, min(20_000.0, 14 * drawing.length))
    scale = width / max(drawing.length, 0.001)
    bottom = _TOP + _LANE * (drawing.replicas + 1)
    size = f'width="{width + _LEFT + 20:.0f}" height="{bottom + 90}"'
    font = 'font-family="sans-serif" font-size="11"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>']
    parts.append(
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="18">{escape(drawing.title)}</text>'
    )
    for lane in range(-1, drawing.replicas):
        name = "server" if lane < 0 else f"beat{lane}"
        parts.append(f'<text x="8" y="{_TOP + _LANE * (lane + 1) + 15}">{name}</text>')
    parts += [_bar(span, scale, _lane_top(span) + 8, 4, "#c8d8e8") for span in drawing.lives]
    parts += [_bar(span, scale, _lane_top(span) + 4, 12, "#2e8b57") for span in drawing.leads]
    parts += [_bar(span, scale, _lane_top(span) + 1, 18, _colour(span), 0.55) for span in drawing.faults]
    most = max(drawing.sent.values(), default=1)
    for second, number in sorted(drawing.sent.items()):
        span = Span(0, second, second + 0.9, f"{number} messages")
        parts.append(_bar(span, scale, bottom + 70 - 60 * number / most, 60 * number / most, "#4a6fa5"))
    for violation in drawing.violations[:1000]:
        x = _LEFT + violation.t * scale
        place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom + 70}"'
        title = f"<title>{escape(violation.kind)}: {escape(violation.text)}</title>"
        parts.append(f'<line {place} stroke="red">{title}</line>')
    step = next(s for s in (5, 10, 30, 60, 300, 600, 3600) if drawing.length / s <= width / 60 or s == 3600)
    marks = range(0, int(drawing.length) + 1, step)
    parts += [f'<text x="{_LEFT + at * scale:.1f}" y="{bottom + 84}">{at} s</text>' for at in marks]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(span: Span, scale: float, top: float, tall: float, colour: str, opacity: float = 1.0) -> str:
    x, wide = _LEFT + span.start * scale, max(1.0, (span.end - span.start) * scale)
    place = f'x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    title = escape(f"{span.name} {span.start:.2f} to {span.end:.2f} s".strip())
    return f'<rect {place} fill="{colour}" fill-opacity="{opacity}"><title>{title}</title></rect>'


def _colour(fault: Span) -> str:
    return "#7b2fbf" if "clock" in fault.name else _COLOURS.get(fault.hits, "black")


def _lane_top(span: Span) -> float:
    return _TOP + _LANE * (span.lane + 1)
