-- Owns whether answers are those of the baseline: greedy ones token by token, sampled ones by their distribution.
-- Does not own what follows for a cell: see `cells.sql`.

-- ------------------------------------------------------------------------------------------------------------- lossless
CREATE VIEW references_of_cells AS  -- what the outputs of a cell are held against: its baseline's, or the baseline's own other repeat
SELECT cell.run, cell.cell_id, arg_min(other.cell_id, other.repeat) AS reference_cell_id
FROM shown_cells cell JOIN shown_cells other
  ON cell.run = other.run AND other.method = 'none' AND other.status = 'ok'
 AND CASE WHEN cell.method = 'none'
          THEN other.deployment_id = cell.deployment_id AND other.condition = cell.condition AND other.repeat <> cell.repeat
          ELSE other.pair_id = cell.pair_id END
WHERE cell.status = 'ok' AND NOT cell.synthetic
GROUP BY cell.run, cell.cell_id;

CREATE VIEW outputs AS  -- what was answered, and no more than comparing it needs
SELECT run, cell_id, temperature, question_id, turn, category, output_ids, output_hash, prompt_hash
FROM recorded_requests recorded JOIN (SELECT run, cell_id, attempt, temperature FROM shown_cells) USING (run, cell_id, attempt)
WHERE is_whole(recorded.error, chunk_gap_ns);

CREATE VIEW divergences AS
-- Each greedy answer beside its reference: that of the paired baseline, or of the baseline's own other repeat. `first_difference`
-- counts from 0 and is the shorter length when one is the other's beginning. A later turn may differ because an earlier one did:
-- then `same_prompt` is false. At a temperature above 0 identity says nothing, and nothing is here: see `distributions`.
WITH answered AS MATERIALIZED (FROM references_of_cells JOIN outputs USING (run, cell_id) WHERE temperature = 0)  -- bounds the planner
SELECT answer.run, answer.cell_id, reference_cell_id, answer.question_id, answer.turn, answer.category,
       CASE WHEN len(answer.output_ids) > 0 OR len(reference.output_ids) > 0 THEN answer.output_ids = reference.output_ids
            ELSE nullif(answer.output_hash, '') = nullif(reference.output_hash, '') END AS is_identical,
       CASE WHEN NOT is_identical AND len(answer.output_ids) > 0 AND len(reference.output_ids) > 0 THEN
            coalesce(list_position(list_transform(list_zip(answer.output_ids, reference.output_ids, true), lambda pair: pair[1] = pair[2]), false) - 1,
                     least(len(answer.output_ids), len(reference.output_ids))) END AS first_difference,
       len(answer.output_ids) AS n_tokens, len(reference.output_ids) AS n_reference_tokens,
       answer.prompt_hash = reference.prompt_hash AS same_prompt
FROM answered answer
JOIN outputs reference ON reference.run = answer.run AND reference.cell_id = reference_cell_id
 AND reference.question_id = answer.question_id AND reference.turn = answer.turn;

CREATE VIEW losslessness AS
SELECT run, cell_id, any_value(reference_cell_id) AS reference_cell_id, avg(is_identical::INT) AS lossless, count(is_identical) AS n_compared,
       min(first_difference) AS first_difference_min, percentile(0.5, first_difference) AS first_difference_p50
FROM divergences GROUP BY run, cell_id;

CREATE VIEW scored AS
-- Answers of the untimed pass with the target's own log-probabilities, one row a prompt (`sampling.scored`), of the shown try.
SELECT recorded.*, mean_logprob(logprobs, output_ids, min_logprob) AS mean_logprob
FROM recorded_scored recorded JOIN (SELECT run, cell_id, attempt FROM shown_cells) USING (run, cell_id, attempt), thresholds;

CREATE VIEW statistics AS
-- What is compared of sampled answers, one row a prompt and statistic: how probable the target itself finds the scored ones, and simple
-- properties of the timed ones. Of a conversation only the first turn: the prompts of later ones hold other answers.
SELECT run, cell_id, 'logprob' AS statistic, question_id, 0 AS turn, avg(mean_logprob) AS value
FROM scored WHERE error = '' AND mean_logprob IS NOT NULL GROUP BY ALL
UNION ALL
SELECT run, cell_id, told.statistic, question_id, turn, avg(told.value) FROM (
    SELECT run, cell_id, question_id, turn, unnest([
        {statistic: 'tokens', value: len(output_ids)::DOUBLE},
        {statistic: 'distinct_tokens', value: distinct_share(output_ids)},
        {statistic: 'repeated_4grams', value: repeated_share(output_ids)}
    ]) AS told
    FROM outputs WHERE temperature > 0 AND turn = 0 AND len(output_ids) > 0
)
WHERE told.value IS NOT NULL GROUP BY ALL;

CREATE VIEW judged_outputs AS
-- The value of a cell and that of its reference for each prompt. Sampled answers: the statistics of both. Greedy ones: whether the
-- speculative answer equals the baseline's, beside whether the baseline's own other repeat does, so that what batching or kernels change
-- by themselves is not blamed on speculation.
WITH subject AS MATERIALIZED (FROM references_of_cells JOIN statistics USING (run, cell_id)),
identity AS MATERIALIZED (SELECT * FROM divergences WHERE same_prompt AND is_identical IS NOT NULL)
SELECT subject.run, subject.cell_id, reference_cell_id, subject.statistic, subject.question_id, subject.turn, subject.value, reference.value AS reference_value
FROM subject JOIN statistics reference ON reference.run = subject.run AND reference.cell_id = reference_cell_id
 AND reference.question_id = subject.question_id AND reference.turn = subject.turn AND reference.statistic = subject.statistic
UNION ALL
SELECT fast.run, fast.cell_id, fast.reference_cell_id, 'identical', question_id, turn, avg(fast.is_identical::DOUBLE), avg(own.is_identical::DOUBLE)
FROM identity fast JOIN (SELECT run, cell_id AS reference_cell_id, question_id, turn, is_identical FROM identity) own
     USING (run, reference_cell_id, question_id, turn)
JOIN (SELECT run, cell_id FROM shown_cells WHERE method <> 'none') USING (run, cell_id)
GROUP BY ALL;

CREATE VIEW output_tests AS
-- Sign-flip permutation test, paired by prompt. If both cells draw from one distribution, each difference could as well have the other
-- sign: p = the share of random signs under which the sum lies at least as far from 0. It asks for no normal distribution and holds
-- for any number of prompts. `p_adjusted` is Holm's over the statistics of a cell, so that all of them together raise a false alarm in
-- at most `max_false_alarms` of the cells. One with so few differences that even all on one side would be chance is not counted [Tarone].
WITH observed AS MATERIALIZED (
    SELECT run, cell_id, reference_cell_id, statistic, count(*) AS n, count(*) FILTER (value <> reference_value) AS n_different,
           pow(2, 1 - n_different) AS least_p, avg(value) AS mean, avg(reference_value) AS reference_mean, mean - reference_mean AS difference,
           list(value - reference_value ORDER BY question_id, turn) AS differences
    FROM judged_outputs GROUP BY ALL
), coins AS MATERIALIZED (  -- for each resample as many as there are prompts at most
    SELECT resample, list_transform(range(n), lambda nth: coin(resample, nth)) AS signs
    FROM (SELECT unnest(range(resamples)) AS resample FROM thresholds), (SELECT max(n) AS n FROM observed)
), permuted AS (
    SELECT observed.* EXCLUDE (differences),
           (1 + count(*) FILTER (abs(list_dot_product(differences, signs[1:n])) >= abs(list_sum(differences)) - 1e-9)) / (1 + count(*)) AS p
    FROM observed, coins GROUP BY ALL
), ranked AS (
    SELECT *, count(*) FILTER (least_p <= max_false_alarms) OVER (PARTITION BY run, cell_id) AS n_statistics,
           row_number() OVER (PARTITION BY run, cell_id ORDER BY least_p <= max_false_alarms DESC, p, statistic) AS place
    FROM permuted, thresholds
)
SELECT run, cell_id, reference_cell_id, statistic, n, n_different, mean, reference_mean, difference, p, n_statistics,
       least(1, max(p * greatest(1, n_statistics - place + 1)) OVER (PARTITION BY run, cell_id ORDER BY place)) AS p_adjusted,
       CASE WHEN n_different = 0 THEN 'no difference'
            WHEN greatest(1, n_statistics) * least_p > max_false_alarms THEN 'too few prompts'
            WHEN p_adjusted <= max_false_alarms THEN 'differs' ELSE 'no difference' END AS verdict
FROM ranked;

CREATE VIEW distributions AS
-- Whether sampled answers (temperature above 0) are drawn as the baseline draws them: a speculative cell against its baseline, and the
-- baseline against its own other repeat (`method` 'none'), which says what the test finds where nothing is.
SELECT output_tests.*, method, draft FROM output_tests JOIN (SELECT run, cell_id, method, draft FROM shown_cells) USING (run, cell_id)
WHERE statistic <> 'identical';

CREATE VIEW output_verdicts AS  -- one row a cell: the gravest of its verdicts
SELECT run, cell_id, any_value(statistic) = 'identical' AS is_greedy, min(p_adjusted) AS p,
       CASE WHEN bool_or(verdict = 'differs' AND (statistic <> 'identical' OR difference < 0)) THEN 'differs'
            WHEN bool_or(verdict = 'too few prompts') AND NOT bool_or(verdict = 'no difference' AND n_different > 0) THEN 'too few prompts'
            ELSE 'no difference' END AS verdict,
       any_value(reference_mean) FILTER (statistic = 'identical') AS baseline_lossless
FROM output_tests GROUP BY run, cell_id;
