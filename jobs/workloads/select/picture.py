"""Owns the map of a pool: its two principal components as SVG, the picked prompts on top. Does not own what is picked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from jobs.workloads.select.choose import Indices, Vectors

WIDTH, HEIGHT, MARGIN, LINE = 720, 560, 24, 18
FONT = 'font-family="sans-serif" font-size="12"'
MOST = 4000  # dots of the pool that are drawn: more would only be a grey sheet
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#222222",
    "#ee7733",
    "#997700",
    "#44aa99",
    "#882255",
)


def principal(vectors: Vectors) -> tuple[NDArray[np.float64], float]:
    """The two directions in which the vectors differ most, as coordinates, and the share of their variance in these.

    O(n·d² + d³). The sign of a direction is arbitrary: its largest entry is made positive, so that pictures can be compared.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    covariance = (vectors.T @ vectors).astype(np.float64) / len(vectors) - np.outer(mean, mean)
    values, directions = np.linalg.eigh(covariance)
    plane = directions[:, ::-1][:, :2]
    plane = plane * np.where(np.abs(plane).max(axis=0) == plane.max(axis=0), 1.0, -1.0)
    return (vectors @ plane.astype(np.float32)) - mean @ plane, float(values[-2:].sum() / max(values.sum(), 1e-12))


def map_of(vectors: Vectors, picked: Mapping[str, Indices], title: str, seed: int) -> str:
    """SVG: the pool in grey, the picked places of each category in its colour."""
    places, share = principal(vectors)
    low, span = places.min(axis=0), np.maximum(np.ptp(places, axis=0), 1e-12)
    size = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    dots = MARGIN + (places - low) / span * size
    pool = np.random.default_rng(seed).permutation(len(vectors))[:MOST]
    height = HEIGHT + LINE * (2 + (len(picked) + 3) // 4)
    caption = f"{title} The plane of the two principal components holds {share:.0%} of the variance."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
            f'<title>{escape(caption)}</title><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            _dots(dots[np.sort(pool)], "#c0c0c0", 2.0),
            *(_dots(dots[found], COLOURS[n % len(COLOURS)], 3.2) for n, found in enumerate(picked.values())),
            f'<text x="{MARGIN}" y="{HEIGHT + 4}">{escape(caption)}</text>',
            *_legend(list(picked)),
            "</svg>\n",
        ]
    )


def _dots(places: NDArray[np.float64], colour: str, radius: float) -> str:
    circles = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in places)
    return f'<g fill="{colour}" fill-opacity="0.8">{"".join(circles)}</g>'


def _legend(names: Sequence[str]) -> list[str]:
    """Four names a line."""
    lines = []
    for n, name in enumerate(names):
        x, y = MARGIN + n % 4 * (WIDTH - 2 * MARGIN) / 4, HEIGHT + LINE * (1 + n // 4) + 8
        lines.append(f'<circle cx="{x + 4:.0f}" cy="{y - 4}" r="4" fill="{COLOURS[n % len(COLOURS)]}"/>')
        lines.append(f'<text x="{x + 13:.0f}" y="{y}">{escape(name)}</text>')
    return lines
