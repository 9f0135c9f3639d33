"""Owns the answer in one word and one sentence, over all questions of a report. Does not own the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.report.reading import Row

QUESTION = ("run", "engine", "model", "dtype", "tp", "workload", "split", "temperature")
"""What a row of `verdicts` is about, besides its metric."""


ALIKE = {
    "yes": "In each of {} questions a draft pays wherever it was measured.",
    "depends": "In each of {} questions it pays at some loads or prompts, and not at others.",
    "no": "In none of {} questions a draft is significantly faster.",
}
"""What is said where all questions have one answer."""


@dataclass(frozen=True)
class Headline:
    """`word` is what a reader remembers, `tone` the answer that colours it, `best` the verdict that is quoted."""

    word: str
    tone: str
    sentence: str
    best: Row | None = None


def headline(verdicts: Sequence[Row], *, is_whole: bool = True) -> Headline:
    """Is it worth it, for the speed that a user feels? Of many questions, what their answers have in common.

    While a run is not whole, the answer is one so far.
    """
    told = _headline(verdicts)
    return told if is_whole else replace(told, word=f"{told.word}, so far")


def _headline(verdicts: Sequence[Row]) -> Headline:
    asked = [row for row in verdicts if row["metric"] == "user_tps"]
    told = [row for row in asked if row["answer"] != "unknown"]
    if not told:
        sentence = "No valid speculative cell has a valid baseline beside it: there is nothing to go by."
        return Headline("Not known", "unknown", sentence)
    answers = {row["answer"] for row in told}
    answer = answers.pop() if len(answers) == 1 else "depends"
    best = max(told, key=lambda row: (row["best_verdict"] == "faster", float(row["best_ratio"])))
    is_slower = all(row["n_costing"] == row["n_places"] for row in told)
    sentence = _sentence(best, is_slower) if len(told) == 1 else _many(told, best)
    return Headline(_word(answer, is_slower), answer, sentence, best)


def ratio_of(verdict: Row) -> str:
    """`1.42× [1.31, 1.55]` of the best draft at its best place."""
    interval = (
        f" [{verdict['best_ci_low']:.2f}, {verdict['best_ci_high']:.2f}]" if verdict["best_ci_low"] is not None else ""
    )
    return f"{verdict['best_ratio']:.2f}×{interval}"


def question_of(verdict: Row, verdicts: Sequence[Row]) -> str:
    """Model, engine and workload, and of the rest what differs among these questions."""
    names = [
        name
        for name in QUESTION
        if len({str(row[name]) for row in verdicts}) > 1 and name not in ("model", "engine", "workload")
    ]
    others = [f"{name} {verdict[name]}" for name in names if verdict[name] not in ("", None)]
    return ", ".join([f"{verdict['model']} on {verdict['engine']}", f"workload {verdict['workload']}", *others])


def _word(answer: str, is_slower: bool) -> str:
    if answer == "no":
        return "No, it costs speed" if is_slower else "No gain shown"
    return {"yes": "Yes, it pays", "depends": "It depends"}[answer]


def _sentence(verdict: Row, is_slower: bool) -> str:
    best = f"{verdict['best_draft']} serves a user {ratio_of(verdict)} as fast as without speculation"
    at = f"at {verdict['best_at']}"
    if verdict["answer"] == "yes":
        everywhere = (
            f"; a draft pays everywhere it was measured: {verdict['where_it_pays']}" if verdict["n_places"] > 1 else ""
        )
        return f"{best}, {at}{everywhere}."
    if verdict["answer"] == "depends":
        return (
            f"It pays at {verdict['where_it_pays']}, and does not at {verdict['where_it_does_not']}. At best {best}, {at}."
        )
    if is_slower:
        return f"Every draft is slower than none: even the best, {best}, {at}."
    return f"No draft is significantly faster than none. The nearest: {best}, {at}."


def _many(told: Sequence[Row], best: Row) -> str:
    answers = {row["answer"] for row in told}
    top = f"{best['best_draft']} with {ratio_of(best)} for a user ({question_of(best, told)}, {best['best_at']})"
    if len(answers) == 1:
        return f"{ALIKE[answers.pop()].format(len(told))} At best {top}."
    counts = [(answer, sum(row["answer"] == answer for row in told)) for answer in ("yes", "depends", "no")]
    words = ", ".join(f"{answer} for {n}" for answer, n in counts if n)
    return f"Of {len(told)} questions: {words}. At best {top}."
