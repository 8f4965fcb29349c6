"""How 10,000 waits spread, for each jitter, beside the formula.

    python -m benchmarks.backoff        draw docs/backoff.svg again

The luck is seeded, so that the picture is the same for everybody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from celery_singlebeat.policy.backoff import Backoff, Jitter, wait

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "backoff.svg"
WAITS = 10_000
#: The fourth failure, base 1 s: the ceiling is 8 s. A decorrelated wait follows one of 4 s.
ATTEMPT, LAST = 4, 4.0
#: Seconds that the picture shows, and the width of a bar.
RANGE, BAR = 13.0, 0.25

_BOUNDS = {Jitter.FULL: (0.0, 8.0), Jitter.EQUAL: (4.0, 8.0), Jitter.DECORRELATED: (1.0, 12.0)}
_FORMULAS = {
    Jitter.FULL: "uniform from 0 to ceiling = base · 2³ = 8",
    Jitter.EQUAL: "uniform from ceiling / 2 = 4 to ceiling = 8",
    Jitter.DECORRELATED: "uniform from base = 1 to 3 · last wait = 12",
    Jitter.NONE: "always ceiling = 8",
}
_LEGEND = f"{WAITS:,} waits for each jitter, in bars of a quarter of a second, and the formula (line)"
_LEFT, _TOP, _WIDTH, _HEIGHT, _STEP = 64, 64, 560, 84, 136
_INK, _SOFT, _BARS, _LINE = "#222222", "#666666", "#9db9d6", "#b03060"


@dataclass(frozen=True, slots=True)
class Spread:
    """How many of the waits lie in each bar, and how many the formula expects there."""

    jitter: Jitter
    counts: list[int]
    expected: list[float]


def spread(jitter: Jitter) -> Spread:
    """Draw the waits of one jitter."""
    luck = random.Random(jitter.value)
    backoff = Backoff(jitter=jitter)
    counts = [0] * round(RANGE / BAR)
    for _ in range(WAITS):
        seconds = wait(ATTEMPT, backoff=backoff, luck=luck.random(), last=LAST)
        counts[int(seconds / BAR)] += 1
    return Spread(jitter, counts, [_expected(jitter, number * BAR) for number in range(len(counts))])


def _expected(jitter: Jitter, start: float) -> float:
    if jitter is Jitter.NONE:
        return float(WAITS) if start <= 8.0 < start + BAR else 0.0
    low, high = _BOUNDS[jitter]
    return WAITS * max(0.0, min(high, start + BAR) - max(low, start)) / (high - low)


def draw() -> str:
    """The picture as SVG."""
    parts = [
        _text(_LEFT, 26, "Waits after the fourth failure, retry_backoff = 1", size=16),
        _text(_LEFT, 44, _LEGEND, colour=_SOFT),
    ]
    for number, jitter in enumerate(Jitter):
        parts += _panel(spread(jitter), _TOP + number * _STEP)
    height = _TOP + len(Jitter) * _STEP + 10
    width = _LEFT + _WIDTH + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif">'
    )
    return (
        "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *parts, "</svg>"])
        + "\n"
    )


def _panel(shown: Spread, top: float) -> list[str]:
    most = 1.2 * max(shown.expected)
    base = top + 24 + _HEIGHT
    slot = _WIDTH / len(shown.counts)
    parts = [_text(_LEFT, top + 14, f"{shown.jitter.value}: {_FORMULAS[shown.jitter]}")]
    for number, count in enumerate(shown.counts):
        if count:
            high = _HEIGHT * count / most
            parts.append(
                f'<rect x="{_LEFT + number * slot:.1f}" y="{base - high:.1f}" width="{slot - 1:.1f}" '
                f'height="{high:.1f}" fill="{_BARS}"/>'
            )
    likely = [number for number, count in enumerate(shown.expected) if count]
    points = [f"{_LEFT + likely[0] * slot:.1f},{base:.1f}"]
    for number in likely:
        high = base - _HEIGHT * shown.expected[number] / most
        points += [f"{_LEFT + number * slot:.1f},{high:.1f}", f"{_LEFT + (number + 1) * slot:.1f},{high:.1f}"]
    points.append(f"{_LEFT + (likely[-1] + 1) * slot:.1f},{base:.1f}")
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>')
    parts.append(f'<path d="M{_LEFT} {base:.1f}h{_WIDTH}" stroke="{_INK}"/>')
    for second in range(int(RANGE) + 1):
        across = _LEFT + _WIDTH * second / RANGE
        parts.append(f'<path d="M{across:.1f} {base:.1f}v4" stroke="{_INK}"/>')
        if second % 2 == 0:
            parts.append(_text(across, base + 17, f"{second} s", size=11, anchor="middle", colour=_SOFT))
    tallest = max(shown.counts)
    height = base - _HEIGHT * tallest / most + 4
    parts.append(_text(_LEFT - 8, height, f"{tallest:,}", size=11, anchor="end", colour=_SOFT))
    return parts


def _text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", colour: str = _INK
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{words}</text>'


def main() -> None:
    PICTURE.write_text(draw(), "utf-8")
    print(f"{PICTURE} is written again")
    for jitter in Jitter:
        shown = spread(jitter)
        off = max(abs(count - wish) for count, wish in zip(shown.counts, shown.expected, strict=True))
        print(f"{jitter.value:13} {_FORMULAS[jitter]}: no bar is more than {off:.0f} waits off")


if __name__ == "__main__":
    main()
