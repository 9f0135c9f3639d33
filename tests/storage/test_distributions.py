"""Whether sampled outputs are drawn as the baseline draws them: false alarms counted, faults caught, nothing else judged.

A toy model stands for the target: a distribution over tokens for each prompt, from which answers are drawn at a temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import ask, create_cell, create_request, create_row, create_session, record

from storage.rows import CellResult, CellRow, RequestRow, ScoredRow
from storage.tables import CELLS, REQUESTS, SCORED, to_parquet

VOCABULARY = 40
TEMPERATURE = 0.8


@dataclass(frozen=True)
class ToyModel:
    """Logits by prompt and token; token 0 ends an answer."""

    logits: np.ndarray
    draws: np.random.Generator

    def answer(self, prompt: int, temperature: float, limit: int = 64) -> list[int]:
        chances = np.exp(self.logits[prompt] / temperature) if temperature < np.inf else np.ones(VOCABULARY)
        ids = self.draws.choice(VOCABULARY, size=limit, p=chances / chances.sum())
        ends = np.flatnonzero(ids == 0)
        return [int(token) for token in (ids[: ends[0] + 1] if len(ends) else ids)]

    def logprobs(self, prompt: int, ids: Sequence[int]) -> list[float]:
        logits = self.logits[prompt]
        return [float(logits[token] - np.log(np.exp(logits).sum())) for token in ids]


def toy_model(n_prompts: int, seed: int) -> ToyModel:
    draws = np.random.default_rng(seed)
    logits = draws.normal(0, 2, (n_prompts, VOCABULARY))
    logits[:, 0] = 0
    return ToyModel(logits, draws)


def sampled(
    model: ToyModel, method: str, repeat: int, temperature: float = TEMPERATURE, n_scored: int = 24
) -> tuple[CellRow, list[RequestRow], list[ScoredRow]]:
    """A cell as if it had been measured at `TEMPERATURE`, whose answers are drawn at another."""
    row = create_row(create_cell(method, 0 if method == "none" else 3, repeat=repeat, temperature=TEMPERATURE))
    requests, scored = [], []
    for prompt in range(len(model.logits)):
        ids = model.answer(prompt, temperature)
        requests.append(replace(create_request(row, prompt, gaps_ms=(10.0,) * len(ids)), output_ids=ids, output_hash=""))
    for prompt in range(n_scored):
        ids = model.answer(prompt, temperature)
        scored.append(ScoredRow(row.cell_id, 1, prompt, f"q{prompt}", "coding", "p", ids, model.logprobs(prompt, ids)))
    return row, requests, scored


def write(folder: Path, cells: Sequence[tuple[CellRow, list[RequestRow], list[ScoredRow]]]) -> Path:
    """All cells in one file a kind: thousands of files would take minutes."""
    record(folder)
    rows, requests, scored = zip(*cells, strict=True)
    for kind, schema, content in (
        ("cells", CELLS, rows),
        ("requests", REQUESTS, [row for part in requests for row in part]),
        ("scored", SCORED, [row for part in scored for row in part]),
    ):
        (folder / kind / "all-1.parquet").write_bytes(to_parquet(content, schema))
    return folder


N_PAIRS = 400


@pytest.fixture(scope="module")
def nothing_wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 pairs of cells that draw alike; the baselines are each other's repeats."""

    def cells() -> Iterator[tuple[CellRow, list[RequestRow], list[ScoredRow]]]:
        model = toy_model(24, seed=7)
        for repeat in range(N_PAIRS):
            yield sampled(model, "none", repeat)
            yield sampled(model, "ngram", repeat)

    return write(tmp_path_factory.mktemp("null") / "run", list(cells()))


def test_where_nothing_is_wrong_an_alarm_is_rare(nothing_wrong: Path) -> None:
    """At the level of 1 % some 4 of 400 cells are expected; more than 11 would come once in a thousand such tests."""
    alarms = dict(
        ask(
            nothing_wrong,
            "SELECT method, count(DISTINCT cell_id) FILTER (verdict = 'differs') FROM distributions GROUP BY method",
        )
    )
    in_reasons = ask(nothing_wrong, "SELECT count(*) FROM cells WHERE 'distribution_differs' IN reasons")[0][0]

    assert alarms["ngram"] == in_reasons <= 11
    assert alarms["none"] <= 11  # shown for the baseline against its own repeat, and no reason there


def test_p_is_what_it_says(nothing_wrong: Path) -> None:
    """Below 5 % in 5 % of the cases, of every statistic; 400 cases tell that to within 3.5 points."""
    shares = ask(
        nothing_wrong,
        "SELECT statistic, avg((p <= 0.05)::INT), max(n) FROM distributions WHERE method <> 'none' "
        "GROUP BY ALL ORDER BY ALL",
    )

    assert [name for name, _, _ in shares] == ["distinct_tokens", "logprob", "repeated_4grams", "tokens"]
    assert all(n == 24 for _, _, n in shares)
    assert all(abs(share - 0.05) < 0.035 for name, share, _ in shares if name != "repeated_4grams")
    assert all(share < 0.085 for _, share, _ in shares)


@pytest.mark.parametrize(
    ("temperature", "n_prompts", "statistics"),
    [
        pytest.param(np.inf, 24, {"logprob"}, id="garbage"),
        pytest.param(1.1, 96, {"logprob"}, id="a temperature of 1.1 instead of 0.8"),
        pytest.param(0.6, 96, {"logprob"}, id="a temperature of 0.6 instead of 0.8"),
    ],
)
def test_another_distribution_is_caught(tmp_path: Path, temperature: float, n_prompts: int, statistics: set[str]) -> None:
    model = toy_model(n_prompts, seed=11)
    folder = write(
        tmp_path / "run",
        [
            *(sampled(model, "none", repeat, n_scored=n_prompts) for repeat in (0, 1)),
            *(sampled(model, "ngram", repeat, temperature, n_scored=n_prompts) for repeat in (0, 1)),
        ],
    )

    found = ask(
        folder, "SELECT method, list(DISTINCT statistic) FROM distributions WHERE verdict = 'differs' GROUP BY method"
    )
    cells = ask(folder, "SELECT method, valid, distribution FROM cells ORDER BY method, repeat")

    assert [method for method, _ in found] == ["ngram"]
    assert statistics <= set(found[0][1])
    assert cells == [("ngram", False, "differs")] * 2 + [("none", True, "no difference")] * 2


def test_an_impossible_token_is_not_all_that_a_mean_tells(tmp_path: Path) -> None:
    """-inf counts as `min_logprob`: a mean of it would compare as nothing at all."""
    model = toy_model(24, seed=3)
    base, fast = sampled(model, "none", 0), sampled(model, "ngram", 0)
    impossible = [replace(row, logprobs=[-float("inf"), *list(row.logprobs)[1:]]) for row in fast[2]]
    folder = write(tmp_path / "run", [base, (fast[0], fast[1], impossible)])

    [(least, verdict)] = ask(
        folder,
        "SELECT (SELECT min(mean_logprob) FROM scored), verdict FROM distributions WHERE statistic = 'logprob'",
    )

    assert least >= -50
    assert verdict == "differs"


def test_with_few_prompts_nothing_is_claimed(tmp_path: Path) -> None:
    model = toy_model(6, seed=5)
    folder = write(tmp_path / "run", [sampled(model, "none", 0, n_scored=6), sampled(model, "ngram", 0, np.inf, n_scored=6)])

    assert set(ask(folder, "SELECT verdict FROM distributions WHERE n_different > 0")) == {("too few prompts",)}
    assert ask(folder, "SELECT distribution, valid FROM cells WHERE method = 'ngram'") == [("too few prompts", True)]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"error": "broke"}, id="an answer that failed"),
        pytest.param({"logprobs": []}, id="an engine that told no log-probabilities"),
    ],
)
def test_scored_answers_that_say_nothing_are_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = toy_model(24, seed=3)
    base, fast = sampled(model, "none", 0), sampled(model, "ngram", 0)
    mute = [replace(row, **changes) for row in fast[2]]
    folder = write(tmp_path / "run", [base, (fast[0], fast[1], mute)])

    statistics = {name for (name,) in ask(folder, "SELECT statistic FROM distributions")}

    assert statistics == {"tokens", "distinct_tokens", "repeated_4grams"}


def test_synthetic_outputs_are_labelled_and_never_judged(tmp_path: Path) -> None:
    model = toy_model(24, seed=3)
    greedy = [create_row(create_cell(method, 3 if method != "none" else 0)) for method in ("none", "synthetic")]
    folder = write(
        tmp_path / "run",
        [
            sampled(model, "none", 0),
            sampled(model, "synthetic", 0, np.inf),
            *((row, [create_request(row, n, output_ids=[n, i]) for n in range(9)], []) for i, row in enumerate(greedy)),
        ],
    )

    assert ask(folder, "SELECT count(*) FROM distributions") == [(0,)]
    assert ask(folder, "SELECT DISTINCT synthetic, identity, distribution, lossless FROM cells ORDER BY synthetic") == [
        (False, None, None, None),
        (True, None, None, None),
    ]


def test_sampled_outputs_are_never_compared_token_by_token(tmp_path: Path) -> None:
    model = toy_model(24, seed=3)
    folder = write(tmp_path / "run", [sampled(model, method, repeat) for method in ("none", "ngram") for repeat in (0, 1)])

    assert ask(folder, "SELECT count(*) FROM divergences") == [(0,)]
    assert set(ask(folder, "SELECT lossless, identity FROM cells")) == {(None, None)}


# -------------------------------------------------------------------------------------------------------- greedy identity


def greedy(method: str, repeat: int, different: Sequence[int], n: int = 20) -> CellResult:
    """20 answers of 3 tokens; those in `different` differ from all others at their second token."""
    row = create_row(create_cell(method, 0 if method == "none" else 3, repeat=repeat))
    tag = 100 + 10 * repeat + (method != "none")
    return CellResult(
        row, [create_request(row, i, output_ids=[i, tag if i in different else 7, 8], output_hash="") for i in range(n)]
    )


@pytest.mark.parametrize(
    ("of_baseline", "of_draft", "dtype", "expected"),
    [
        pytest.param(range(0), range(0), "float32", ("no difference", 1.0, 1.0, True), id="identical, as the baseline is"),
        pytest.param(range(12), range(12), "float32", ("no difference", 0.4, 0.4, True), id="the baseline's own fault"),
        pytest.param(range(0), range(12), "float32", ("differs", 0.4, 1.0, False), id="beyond the baseline's own"),
        pytest.param(range(0), range(12), "bfloat16", ("differs", 0.4, 1.0, True), id="told, but bfloat16 rounds by shape"),
        pytest.param(range(12), range(0), "float32", ("no difference", 0.4, 0.4, True), id="no draft has to be better"),
        pytest.param(range(0), range(3), "float32", ("too few prompts", 0.85, 1.0, True), id="three could be chance"),
    ],
)
def test_a_draft_is_blamed_only_beyond_what_the_baseline_does_by_itself(
    tmp_path: Path, of_baseline: range, of_draft: range, dtype: str, expected: tuple[Any, ...]
) -> None:
    cells = [greedy("none", 0, of_baseline), greedy("none", 1, of_baseline), greedy("ngram", 0, of_draft)]
    sessions = [create_session(cell.cell, effective_config_json=f'{{"dtype": "{dtype}"}}') for cell in cells[1:]]
    folder = record(tmp_path / "run", *cells, *sessions)

    found = ask(folder, "SELECT identity, lossless, baseline_lossless, valid FROM cells WHERE method = 'ngram'")

    assert found == [expected]


def test_without_a_repeat_of_the_baseline_nobody_is_blamed(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", greedy("none", 0, ()), greedy("ngram", 0, range(12)))
    sql = "SELECT identity, lossless, baseline_lossless, first_difference_min, first_difference_p50, valid FROM cells"

    assert ask(folder, f"{sql} WHERE method = 'ngram'") == [(None, 0.4, None, 1, 1.0, True)]
