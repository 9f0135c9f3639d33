-- Owns speculative cells beside their paired baselines: ratios, intervals, projections. Does not own decisions.

-- ----------------------------------------------------------------------------------------------------------- comparisons
CREATE VIEW pairs AS  -- a speculative cell and its baseline: the same measurement without a draft, of the same repeat
SELECT fast.run, fast.cell_id, base.cell_id AS baseline_cell_id, fast.deployment_id, base.deployment_id AS baseline_deployment_id,
       fast.condition, fast.duration_s, base.duration_s AS baseline_duration_s
FROM shown_cells fast JOIN shown_cells base ON base.run = fast.run AND base.pair_id = fast.pair_id AND base.method = 'none'
WHERE fast.method <> 'none' AND fast.status = 'ok' AND base.status = 'ok';

CREATE VIEW judged_pairs AS
WITH judged AS MATERIALIZED (SELECT run, cell_id, valid, al, al_drafted FROM cells)  -- once for both sides
SELECT pairs.run, pairs.cell_id, deployment_id, condition, fast.valid AND base.valid AS valid, fast.al, fast.al_drafted
FROM pairs JOIN judged fast USING (run, cell_id) JOIN judged base ON base.run = pairs.run AND base.cell_id = baseline_cell_id;

CREATE VIEW draft_pairs AS
-- The pairs that speak for a draft and condition: its valid ones; where there are none, all of them, and they are no ground for a claim.
SELECT pairs.*, valid, count(*) OVER same AS n_repeats, n_all - n_repeats AS n_left_out
FROM (SELECT run, cell_id, valid, count(*) OVER of_draft AS n_all, valid OR NOT bool_or(valid) OVER of_draft AS speaks
      FROM judged_pairs WINDOW of_draft AS (PARTITION BY run, deployment_id, condition)) JOIN pairs USING (run, cell_id)
WHERE speaks WINDOW same AS (PARTITION BY run, deployment_id, condition);

CREATE VIEW answers AS  -- one row a prompt: a prompt that was sent more than once speaks once
SELECT run, cell_id, question_id, turn, any_value(category) AS category, avg(user_tps) AS user_tps, avg(tpot_ms) AS tpot_ms,
       avg(ttft_ms) AS ttft_ms, avg(e2e_ms) AS e2e_ms, sum(n_output_tokens) AS tokens, sum(e2e_ms) AS busy_ms
FROM requests WHERE is_answered GROUP BY run, cell_id, question_id, turn;

CREATE VIEW answered_twice AS
-- Prompts that both cells of a pair answered. A `gain` is of two numbers, `top` and `bottom`, so that top / bottom > 1 always means
-- faster with speculation. `level` says what is compared: one cell, or one draft over its repeats (a prompt's mean over them first:
-- repeats of a prompt are no new prompts). Of one repeat, the cell speaks for the draft: nothing is computed twice.
WITH fast AS MATERIALIZED (SELECT * FROM pairs JOIN answers USING (run, cell_id)),  -- bounds the planner: it would join prompts first
prompts AS (
    SELECT fast.run, fast.cell_id, baseline_cell_id, deployment_id, baseline_deployment_id, condition,
           unnest(['all', fast.category]) AS category, fast.question_id, fast.turn,
           fast.user_tps, base.user_tps AS base_user_tps, fast.tpot_ms, base.tpot_ms AS base_tpot_ms, fast.ttft_ms, base.ttft_ms AS base_ttft_ms,
           fast.e2e_ms, base.e2e_ms AS base_e2e_ms, fast.tokens, base.tokens AS base_tokens, fast.busy_ms, base.busy_ms AS base_busy_ms
    FROM fast JOIN answers base ON base.run = fast.run AND base.cell_id = fast.baseline_cell_id
     AND base.question_id = fast.question_id AND base.turn = fast.turn
)
SELECT 'cell' AS level, run, cell_id AS subject, baseline_cell_id AS baseline, '' AS condition, category, question_id, turn,
       * EXCLUDE (run, cell_id, baseline_cell_id, deployment_id, baseline_deployment_id, condition, category, question_id, turn)
FROM prompts
UNION ALL BY NAME
SELECT 'draft' AS level, run, deployment_id AS subject, baseline_deployment_id AS baseline, condition, category, question_id, turn,
       avg(user_tps) AS user_tps, avg(base_user_tps) AS base_user_tps, avg(tpot_ms) AS tpot_ms, avg(base_tpot_ms) AS base_tpot_ms,
       avg(ttft_ms) AS ttft_ms, avg(base_ttft_ms) AS base_ttft_ms, avg(e2e_ms) AS e2e_ms, avg(base_e2e_ms) AS base_e2e_ms,
       sum(tokens) AS tokens, sum(base_tokens) AS base_tokens, sum(busy_ms) AS busy_ms, sum(base_busy_ms) AS base_busy_ms
FROM prompts JOIN (SELECT run, cell_id FROM draft_pairs WHERE n_repeats > 1) USING (run, cell_id) GROUP BY ALL;

-- The statistic of two lists: a ratio of medians; where there are weights, one of sums by their weights. Of a resample, the first list sorted,
-- its median is where the sorted draw has its middle, and a sum is one of products with how often each prompt was drawn.
CREATE MACRO ratio_of_medians(tops, bottoms) AS list_aggregate(tops, 'median') / nullif(list_aggregate(bottoms, 'median'), 0);
CREATE MACRO ratio_of_rates(tops, bottoms, top_weights, bottom_weights) AS
    (list_sum(tops) / nullif(list_sum(top_weights), 0)) / nullif(list_sum(bottoms) / nullif(list_sum(bottom_weights), 0), 0);
CREATE MACRO resampled_medians(tops, bottoms, drawn, low, high) AS
    (tops[low] + tops[high]) / 2 / nullif(list_aggregate(list_select(bottoms, drawn), 'median'), 0);
CREATE MACRO resampled_rates(tops, bottoms, top_weights, bottom_weights, times) AS
    (list_dot_product(tops, times) / nullif(list_dot_product(top_weights, times), 0))
    / nullif(list_dot_product(bottoms, times) / nullif(list_dot_product(bottom_weights, times), 0), 0);

CREATE VIEW gains AS  -- the lists that a ratio is made of, in one order, that of `tops`, so that a resample takes the same prompts from both
SELECT level, run, subject, baseline, condition, category, gain.metric,
       list(gain.top ORDER BY gain.top, question_id, turn) AS tops, list(gain.bottom ORDER BY gain.top, question_id, turn) AS bottoms,
       list(gain.top_weight ORDER BY gain.top, question_id, turn) AS top_weights, list(gain.bottom_weight ORDER BY gain.top, question_id, turn) AS bottom_weights
FROM (
    SELECT level, run, subject, baseline, condition, category, question_id, turn, unnest([
        {metric: 'user_tps', top: user_tps, bottom: base_user_tps, top_weight: 1.0::DOUBLE, bottom_weight: 1.0::DOUBLE},
        {metric: 'tpot', top: base_tpot_ms, bottom: tpot_ms, top_weight: 1.0, bottom_weight: 1.0},
        {metric: 'ttft', top: base_ttft_ms, bottom: ttft_ms, top_weight: 1.0, bottom_weight: 1.0},
        {metric: 'e2e', top: base_e2e_ms, bottom: e2e_ms, top_weight: 1.0, bottom_weight: 1.0},
        -- Throughput by prompt: tokens per time that requests were busy; with full slots it is the cell's, but for the number of slots.
        {metric: 'output_tps', top: tokens, bottom: base_tokens, top_weight: busy_ms, bottom_weight: base_busy_ms}
    ]) AS gain
    FROM answered_twice
)
WHERE gain.top IS NOT NULL AND gain.bottom IS NOT NULL
GROUP BY ALL;

CREATE VIEW whole_cell_gains AS  -- the measured ratio of output TPS, of all that was answered and the whole duration
WITH throughputs AS (
    SELECT pairs.*, fast.tokens / nullif(duration_s, 0) AS output_tps, base.tokens / nullif(baseline_duration_s, 0) AS base_output_tps
    FROM pairs
    JOIN (SELECT run, cell_id, sum(tokens) AS tokens FROM answers GROUP BY run, cell_id) fast USING (run, cell_id)
    JOIN (SELECT run, cell_id AS baseline_cell_id, sum(tokens) AS tokens FROM answers GROUP BY run, cell_id) base USING (run, baseline_cell_id)
)
SELECT 'cell' AS level, run, cell_id AS subject, baseline_cell_id AS baseline, '' AS condition, 'all' AS category, 'output_tps' AS metric,
       output_tps / nullif(base_output_tps, 0) AS whole_ratio
FROM throughputs
UNION ALL
SELECT 'draft', run, deployment_id, baseline_deployment_id, condition, 'all', 'output_tps', avg(output_tps) / nullif(avg(base_output_tps), 0)
FROM throughputs JOIN (SELECT run, cell_id FROM draft_pairs WHERE n_repeats > 1) USING (run, cell_id) GROUP BY ALL;

CREATE VIEW observed_gains AS
-- The measured ratios. The whole cell's output TPS cannot be taken apart by prompt: its interval is that of the throughput by prompt,
-- moved (`scale`) onto the ratio that was measured.
SELECT level, run, subject, baseline, condition, category, metric, tops, bottoms, top_weights, bottom_weights, len(tops) AS n_prompts,
       metric = 'output_tps' AS is_weighted,
       CASE WHEN is_weighted THEN ratio_of_rates(tops, bottoms, top_weights, bottom_weights) ELSE ratio_of_medians(tops, bottoms) END
           AS ratio_by_prompt,
       coalesce(whole_ratio, ratio_by_prompt) AS ratio,
       ratio / nullif(ratio_by_prompt, 0) AS scale
FROM gains LEFT JOIN whole_cell_gains USING (level, run, subject, baseline, condition, category, metric);

CREATE VIEW numbers AS  -- for each resample as many numbers as there are prompts at most
SELECT resample, list_transform(range(n), lambda nth: uniform(resample, nth)) AS uniforms
FROM (SELECT unnest(range(resamples)) AS resample FROM thresholds),
     (SELECT max(n) AS n FROM (SELECT count(DISTINCT (question_id, turn)) AS n FROM recorded_requests GROUP BY run));

CREATE VIEW comparisons AS
-- Percentile bootstrap, paired by prompt: a resample draws as many prompts as there are, with replacement, and takes the values of both
-- cells for each. Significant = the interval excludes 1, with enough prompts to say so; "not significant" is a result.
WITH observed AS MATERIALIZED (FROM observed_gains),
draws AS MATERIALIZED (  -- those of all that have as many prompts are the same
    SELECT n_prompts, resample, list_transform(uniforms[1:n_prompts], lambda u: 1 + floor(u * n_prompts)::BIGINT) AS drawn, list_sort(drawn) AS ranks,
           ranks[(n_prompts + 1) // 2] AS low, ranks[n_prompts // 2 + 1] AS high
    FROM (SELECT DISTINCT n_prompts FROM observed), numbers
), tallies AS (  -- how often each prompt was drawn
    SELECT n_prompts, resample, list(n ORDER BY nth) AS times
    FROM (SELECT n_prompts, resample, nth, count(*) - 1.0 AS n
          FROM (SELECT n_prompts, resample, unnest(drawn || range(1, n_prompts + 1)) AS nth FROM draws) GROUP BY ALL)
    GROUP BY ALL
), ratios AS (  -- in two parts, since a CASE over both statistics would cost both
    SELECT level, run, subject, baseline, condition, category, metric, ratio, n_prompts,
           scale * resampled_medians(tops, bottoms, drawn, low, high) AS resampled_ratio
    FROM observed JOIN draws USING (n_prompts) WHERE NOT is_weighted
    UNION ALL
    SELECT level, run, subject, baseline, condition, category, metric, ratio, n_prompts,
           scale * resampled_rates(tops, bottoms, top_weights, bottom_weights, times) AS resampled_ratio
    FROM observed JOIN tallies USING (n_prompts) WHERE is_weighted
)
SELECT level, run, subject, baseline, condition, category, metric, ratio, n_prompts,
       CASE WHEN n_prompts > 1 THEN percentile((1 - confidence()) / 2, resampled_ratio) END AS ci_low,
       CASE WHEN n_prompts > 1 THEN percentile((1 + confidence()) / 2, resampled_ratio) END AS ci_high,
       coalesce(n_prompts >= min_prompts_significant AND (ci_low > 1 OR ci_high < 1), false) AS significant,
       CASE WHEN NOT significant THEN 'not significant' WHEN ratio > 1 THEN 'faster' ELSE 'slower' END AS verdict
FROM ratios, thresholds
GROUP BY level, run, subject, baseline, condition, category, metric, ratio, n_prompts, min_prompts_significant;

CREATE VIEW speedups AS
-- One row a speculative cell, metric and category ('all' = over all of them); ratio > 1 always means faster with speculation. Of
-- user_tps, tpot, ttft and e2e it is the ratio of the medians over the prompts that both cells answered. `valid` = both cells are: a
-- ratio of others is shown, and is no ground for a claim. `al` is over all steps, `al_drafted` over drafted ones, of the same category.
SELECT comparisons.run, subject AS cell_id, baseline AS baseline_cell_id, metric, comparisons.category, ratio, ci_low, ci_high, significant,
       verdict, n_prompts, valid,
       CASE comparisons.category WHEN 'all' THEN judged_pairs.al ELSE categories.al END AS al,
       CASE comparisons.category WHEN 'all' THEN judged_pairs.al_drafted ELSE categories.al_drafted END AS al_drafted
FROM comparisons JOIN judged_pairs ON judged_pairs.run = comparisons.run AND cell_id = subject
LEFT JOIN categories ON categories.run = comparisons.run AND categories.cell_id = subject AND categories.category = comparisons.category
WHERE level = 'cell';

CREATE VIEW draft_comparisons AS  -- one row a draft, condition, metric and category: what its repeats say together, and how far apart the single ones lie
WITH told AS MATERIALIZED (FROM comparisons), speaking AS MATERIALIZED (FROM draft_pairs),
spread AS (
    SELECT speaking.run, deployment_id, baseline_deployment_id, speaking.condition, category, metric, valid, n_repeats, n_left_out,
           min(ratio) AS ratio_min, max(ratio) AS ratio_max, any_value(cell_id) AS a_cell_id
    FROM speaking JOIN told ON told.level = 'cell' AND told.run = speaking.run AND subject = cell_id GROUP BY ALL
)
SELECT spread.* EXCLUDE (a_cell_id), ratio, n_prompts, ci_low, ci_high, significant, verdict
FROM spread JOIN told ON told.run = spread.run AND told.category = spread.category AND told.metric = spread.metric
 AND (told.level, told.subject, told.condition) = (CASE WHEN n_repeats > 1 THEN 'draft' ELSE 'cell' END,
      CASE WHEN n_repeats > 1 THEN deployment_id ELSE a_cell_id END, CASE WHEN n_repeats > 1 THEN spread.condition ELSE '' END);

CREATE VIEW draft_speedups AS
-- One row a draft, condition, metric and category: the valid repeats of a pair together, `n_left_out` others are left out; where none is valid, all
-- of them, and `valid` is false. `ratio_min` and `ratio_max` are those of the single repeats: what differs from one session to the next is in no
-- interval that resamples prompts.
WITH labels AS (
    SELECT run, deployment_id, condition, any_value(engine) AS engine, any_value(model) AS model, any_value(method) AS method,
           any_value(k) AS k, any_value(draft) AS draft, any_value(tp) AS tp, any_value(batch) AS batch, any_value(workload) AS workload,
           any_value(isl) AS isl, any_value(entropy) AS entropy, any_value(load) AS load, any_value(load_kind) AS load_kind, any_value(concurrency) AS concurrency,
           any_value(rate) AS rate, any_value(temperature) AS temperature, any_value(dtype) AS dtype, any_value(split) AS split, any_value(variant) AS variant
    FROM shown_cells GROUP BY run, deployment_id, condition
)
SELECT run, engine, model, method, k, draft, tp, batch, workload, isl, concurrency, temperature, metric, category, ratio, ci_low, ci_high,
       significant, verdict, n_prompts, n_repeats, n_left_out, ratio_min, ratio_max, load, load_kind, rate, dtype, split, entropy, variant, deployment_id,
       baseline_deployment_id, condition, valid
FROM draft_comparisons JOIN labels USING (run, deployment_id, condition);
