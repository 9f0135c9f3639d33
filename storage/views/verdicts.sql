-- Owns the answer: is speculation worth it, where, why, and what to do; and what practice asks, answered from data. Does not own the numbers.

CREATE VIEW cell_verdicts AS  -- one row a cell and reason that makes it invalid: the rule with its limit, and what to do; valid cells have none
SELECT run, cell_id, engine, model, draft, workload, load, variant, repeat, status, reason, rule, remedy, error
FROM (SELECT *, unnest(reasons) AS reason FROM cells) JOIN remedies USING (reason);

CREATE VIEW advice AS  -- of every cause: what it means, with its limit, and what helps
SELECT unnest([
    {cause: 'low_acceptance', meaning: format('the target accepts less than {:g} % of what is drafted', 100 * low_efficiency),
     remedy: 'try a draft that is trained for this domain or of the model''s family, or draft fewer tokens (draft.k)'},
    {cause: 'draft_too_dear', meaning: format('drafting takes more than {:g} % of a step without speculation, and more than verifying', 100 * dear_draft_share),
     remedy: 'try a smaller draft, fewer tokens (draft.k), or n-grams'},
    {cause: 'batch_too_large', meaning: format('a step grew dearer by more than {:g} % since the smallest load: verifying is no longer free', 100 * (dear_growth - 1)),
     remedy: 'speculate at lower concurrency only, or draft fewer tokens there'},
    {cause: 'step_too_dear', meaning: format('a speculative step takes more than {:g} times one without', dear_step),
     remedy: 'try another method'},
    {cause: 'prefill_bound', meaning: format('more than {:g} % of a request''s time is before its first token, which speculation does not shorten', 100 * high_prefill_share),
     remedy: 'speed up the prefill (prefix caching, chunked prefill, more GPUs) before the decoding'},
    {cause: 'memory', meaning: format('the draft takes more than {:g} % of the KV cache', 100 * high_kv_loss),
     remedy: 'try a smaller draft or n-grams, or give the engine more memory'}
], recursive := true) FROM thresholds;

CREATE VIEW causes AS
-- Why a draft is as fast as it is: one row a draft, condition and speed-up of user TPS over all prompts; means over its repeats. A draft pays where
-- al > al_break_even. `prefill_share` = the baseline's median TTFT / E2E, null where more requests are in flight than a batch holds: then TTFT is mostly
-- the wait for a slot, which speculation does shorten. `step_growth` = al_break_even / that of the same draft at the smallest load, where the batch is larger.
-- `causes` are those of `advice` that hold, whether it pays or not.
WITH told AS (
    SELECT run, deployment_id, condition, avg(al) AS al, avg(draft_efficiency) AS draft_efficiency, avg(t_ar_ms) AS t_ar_ms, avg(t_sd_ms) AS t_sd_ms,
           avg(al_break_even) AS al_break_even, avg(draft_overhead_ms) AS draft_overhead_ms, avg(verify_overhead_ms) AS verify_overhead_ms,
           avg(projected) AS projected, avg(measured) AS measured, any_value(split_by) AS split_by, avg(CASE WHEN in_flight <= batch THEN base.ttft_ms_p50 / nullif(base.e2e_ms_p50, 0) END) AS prefill_share
    FROM (SELECT run, cell_id, deployment_id, condition FROM draft_pairs)
    JOIN (SELECT run, cell_id, baseline_cell_id, al, t_ar_ms, t_sd_ms, al_break_even, draft_overhead_ms, verify_overhead_ms, projected, measured, split_by
          FROM projections WHERE category = 'all') USING (run, cell_id)
    JOIN (SELECT run, cell_id, draft_efficiency FROM cells) USING (run, cell_id)
    JOIN (SELECT run, cell_id AS baseline_cell_id, ttft_ms_p50, e2e_ms_p50 FROM metrics WHERE category = 'all') base USING (run, baseline_cell_id)
    JOIN (SELECT run, cell_id AS baseline_cell_id, batch, coalesce(concurrency, busy_s / nullif(duration_s, 0)) AS in_flight  -- of an open loop on average [Little]
          FROM shown_cells LEFT JOIN (SELECT run, cell_id, sum(busy_ms) / 1e3 AS busy_s FROM answers GROUP BY ALL) USING (run, cell_id)) USING (run, baseline_cell_id)
    GROUP BY ALL
), stored AS (
    SELECT run, deployment_id, avg(kv_lost_share) AS kv_lost_share FROM memory GROUP BY ALL
), placed AS (
    SELECT draft_speedups.* EXCLUDE (metric, category), told.* EXCLUDE (run, deployment_id, condition), kv_lost_share,
           CASE WHEN concurrency IS NULL OR least(concurrency, batch) > first_value(concurrency) OVER by_load
                THEN al_break_even / first_value(al_break_even) OVER by_load END AS step_growth
    FROM draft_speedups LEFT JOIN told USING (run, deployment_id, condition) LEFT JOIN stored USING (run, deployment_id)
    WHERE metric = 'user_tps' AND category = 'all'
    WINDOW by_load AS (PARTITION BY run, deployment_id, without(condition, '{"load": {"concurrency": null, "rate": null}}') ORDER BY concurrency, rate)
)
SELECT run, engine, model, method, k, draft, tp, batch, workload, isl, entropy, load, load_kind, concurrency, rate, temperature, variant, dtype, CASE WHEN isl > 0 THEN '' ELSE split END AS split, n_repeats, ratio, ci_low, ci_high,
       verdict, valid, al, draft_efficiency, al_break_even, t_ar_ms, t_sd_ms, draft_overhead_ms, verify_overhead_ms, split_by, projected, measured, prefill_share, step_growth,
       kv_lost_share,
       list_filter([
           CASE WHEN draft_efficiency < low_efficiency THEN 'low_acceptance' END,
           CASE WHEN draft_overhead_ms > dear_draft_share * t_ar_ms AND draft_overhead_ms > verify_overhead_ms THEN 'draft_too_dear' END,
           CASE WHEN step_growth > dear_growth THEN 'batch_too_large' END,
           CASE WHEN al_break_even > dear_step AND NOT coalesce(step_growth > dear_growth, false)
                 AND NOT coalesce(draft_overhead_ms > dear_draft_share * t_ar_ms AND draft_overhead_ms > verify_overhead_ms, false) THEN 'step_too_dear' END,
           CASE WHEN prefill_share > high_prefill_share THEN 'prefill_bound' END,
           CASE WHEN kv_lost_share > high_kv_loss THEN 'memory' END
       ], lambda cause: cause IS NOT NULL) AS causes,
       deployment_id, baseline_deployment_id, condition
FROM placed, thresholds;

CREATE VIEW several_batches AS SELECT run AS of_run, engine AS of_engine FROM shown_cells GROUP BY ALL HAVING count(DISTINCT batch) > 1;

CREATE MACRO rest_of(run, engine, isl, entropy, batch, variant) AS  -- what tells a place apart besides its load
    concat_ws(', ', CASE WHEN isl > 0 THEN isl || ' input tokens' END, CASE WHEN entropy <> '' THEN entropy || ' entropy' END,
              CASE WHEN (run, engine) IN (SELECT (of_run, of_engine) FROM several_batches) THEN 'batch ' || batch END, nullif(variant, ''));

CREATE VIEW places AS
-- Steps on the way to `verdicts`: one row a question, metric and place (load, prompt length, batch, entropy); whether any draft pays there. Where a
-- search left drafts out that may pay (`open_places`), and none that was measured does, the place is open: nothing counts there as validly compared.
WITH grouped AS (
    SELECT run, engine, model, dtype, tp, workload, CASE WHEN isl > 0 THEN '' ELSE split END AS split, temperature, metric,
           baseline_deployment_id, condition, any_value(load_kind) AS load_kind, any_value(load) AS load, any_value(concurrency) AS concurrency,
           any_value(rate) AS rate, any_value(isl) AS isl, any_value(batch) AS batch, any_value(entropy) AS entropy,
           any_value(variant) AS variant,
           bool_or(verdict = 'faster') FILTER (valid) AS pays, bool_and(verdict = 'slower') FILTER (valid) AS costs,
           coalesce(any_value(n_not_searched), 0) > 0 AND NOT coalesce(pays, false) AS is_open,
           CASE WHEN is_open THEN 0 ELSE count(*) FILTER (valid) END AS n_valid, count(*) FILTER (NOT valid) AS n_invalid
    FROM draft_speedups LEFT JOIN open_places USING (run, baseline_deployment_id, condition, metric)
    WHERE category = 'all' AND metric IN ('user_tps', 'output_tps') AND ratio IS NOT NULL GROUP BY ALL
)
SELECT *, rest_of(run, engine, isl, entropy, batch, variant) AS rest FROM grouped;

CREATE MACRO listed(names) AS CASE WHEN len(names) > 0 THEN array_to_string(names[1:6], '; ') || CASE WHEN len(names) > 6 THEN format('; and {} more', len(names) - 6) ELSE '' END ELSE '' END;

CREATE VIEW verdicts AS
-- The answers: one row a question (model, engine, dtype, TP, workload, temperature) and metric: is speculation worth it for 'user_tps' (what a user
-- feels) and 'output_tps' (what the hardware gives)? 'yes' = at every place (load, prompt length, batch, entropy) that was validly compared some
-- draft is significantly faster; 'no' = at none; 'depends' = at some; 'unknown' = nothing valid to go by. Only valid comparisons speak. `best_draft`
-- is the one that pays at most places, then the one with the highest mean of log ratios; its numbers are those of its best place, `best_at`: of those
-- where it pays, where there are any.
WITH gains AS MATERIALIZED (
    SELECT *, CASE WHEN isl > 0 THEN '' ELSE split END AS asked_split, concat_ws(', ', load, nullif(rest_of(run, engine, isl, entropy, batch, variant), '')) AS place
    FROM draft_speedups WHERE metric IN ('user_tps', 'output_tps') AND ratio IS NOT NULL
), spots AS MATERIALIZED (FROM places),
ranged AS (  -- loads that pay and that do not, as a range where nothing measured lies between
    SELECT run, engine, model, dtype, tp, workload, split, temperature, metric, rest, load_kind, coalesce(pays, false) AS pays,
           list(load ORDER BY concurrency, rate) AS loads, min(concurrency) AS low, max(concurrency) AS high
    FROM spots WHERE n_valid > 0 GROUP BY ALL
), worded AS (
    SELECT ranged.*, concat_ws(', ', CASE WHEN load_kind = 'closed' AND low < high
            AND (SELECT count(*) FROM spots WHERE n_valid > 0 AND spots.concurrency BETWEEN low AND high AND spots.load_kind = 'closed'
                 AND (spots.run, spots.engine, spots.model, spots.dtype, spots.tp, spots.workload, spots.split, spots.temperature, spots.metric, spots.rest)
                   = (ranged.run, ranged.engine, ranged.model, ranged.dtype, ranged.tp, ranged.workload, ranged.split, ranged.temperature, ranged.metric, ranged.rest)) = len(loads)
           THEN format('concurrency {} to {}', low, high) ELSE array_to_string(loads, ', ') END, nullif(rest, '')) AS words
    FROM ranged
), answers AS (
    SELECT run, engine, model, dtype, tp, workload, split, temperature, metric, count(*) FILTER (n_valid > 0) AS n_places, count(*) FILTER (pays) AS n_paying,
           count(*) FILTER (costs AND NOT is_open) AS n_costing, count(*) FILTER (is_open) AS n_open, sum(n_valid)::BIGINT AS n_comparisons, sum(n_invalid)::BIGINT AS n_invalid,
           CASE WHEN n_places = 0 THEN 'unknown' WHEN n_paying = n_places THEN 'yes' WHEN n_paying = 0 THEN 'no' ELSE 'depends' END AS answer
    FROM spots GROUP BY ALL
), where_told AS (
    SELECT run, engine, model, dtype, tp, workload, split, temperature, metric, listed(list(words ORDER BY rest) FILTER (pays)) AS where_it_pays,
           listed(list(words ORDER BY rest) FILTER (NOT pays)) AS where_it_does_not
    FROM worded GROUP BY ALL
), candidates AS (
    SELECT run, engine, model, dtype, tp, workload, asked_split AS split, temperature, metric, draft, any_value(method) AS best_method, any_value(k) AS best_k,
           count(*) FILTER (verdict = 'faster') AS n_faster, avg(ln(ratio)) AS mean_log,
           listed(list(place ORDER BY isl, concurrency, rate, place) FILTER (verdict = 'faster')) AS faster_at,
           arg_max({ratio: ratio, ci_low: ci_low, ci_high: ci_high, deployment_id: deployment_id, condition: condition, place: place, n_prompts: n_prompts,
                    n_repeats: n_repeats, verdict: verdict}, {is_sure: verdict = 'faster', ratio: ratio}) AS best
    FROM gains WHERE category = 'all' AND valid AND ratio > 0
    GROUP BY run, engine, model, dtype, tp, workload, asked_split, temperature, metric, draft
    QUALIFY row_number() OVER (PARTITION BY run, engine, model, dtype, tp, workload, asked_split, temperature, metric ORDER BY n_faster DESC, mean_log DESC, draft) = 1
), domains AS (
    SELECT run, deployment_id, condition, metric,
           list(format('{} ({:.2f}x)', category, ratio) ORDER BY ratio DESC) FILTER (verdict = 'faster') AS categories_that_pay,
           list(format('{} ({:.2f}x)', category, ratio) ORDER BY ratio) FILTER (verdict = 'slower') AS categories_that_cost
    FROM gains WHERE category <> 'all' GROUP BY ALL
), missed AS (
    SELECT candidates.run, candidates.engine, candidates.model, candidates.dtype, candidates.tp, candidates.workload, candidates.split, candidates.temperature,
           candidates.metric, unnest(CASE WHEN len(causes.causes) > 0 THEN causes.causes ELSE [NULL] END) AS cause,
           format('a step brings {:.2f} tokens (AL) and takes as long as {:.2f} without a draft', causes.al, causes.al_break_even) AS numbers
    FROM candidates JOIN gains ON gains.run = candidates.run AND gains.draft = candidates.draft AND gains.metric = candidates.metric AND gains.category = 'all'
     AND (gains.engine, gains.model, gains.dtype, gains.tp, gains.workload, gains.asked_split, gains.temperature)
       = (candidates.engine, candidates.model, candidates.dtype, candidates.tp, candidates.workload, candidates.split, candidates.temperature)
    JOIN causes ON causes.run = gains.run AND causes.deployment_id = gains.deployment_id AND causes.condition = gains.condition
    WHERE gains.valid AND gains.verdict <> 'faster'
), reasons AS (  -- of the best draft, at the places where it does not pay; where it does everywhere, there are none
    SELECT run, engine, model, dtype, tp, workload, split, temperature, metric, list(cause ORDER BY n DESC, cause) FILTER (cause IS NOT NULL) AS causes,
           any_value(numbers) AS numbers
    FROM (SELECT * EXCLUDE (numbers), count(*) AS n, any_value(numbers) AS numbers FROM missed GROUP BY ALL) GROUP BY ALL
), lengths AS (  -- the best draft by load, where it is not the same everywhere
    SELECT run, engine, model, dtype, tp, workload, CASE WHEN isl > 0 THEN '' ELSE split END AS split, temperature, metric,
           CASE WHEN count(DISTINCT best_draft) > 1 THEN listed(list(concat_ws(', ', load, nullif(rest_of(run, engine, isl, entropy, batch, variant), '')) || ': ' || best_draft ORDER BY isl, concurrency, rate, variant)) END AS by_load
    FROM best_drafts GROUP BY ALL
), joined AS (
    SELECT * FROM answers LEFT JOIN where_told USING (run, engine, model, dtype, tp, workload, split, temperature, metric)
    LEFT JOIN candidates USING (run, engine, model, dtype, tp, workload, split, temperature, metric)
    LEFT JOIN reasons USING (run, engine, model, dtype, tp, workload, split, temperature, metric)
    LEFT JOIN lengths USING (run, engine, model, dtype, tp, workload, split, temperature, metric)
)
SELECT joined.run, joined.engine, joined.model, joined.dtype, joined.tp, joined.workload, joined.split, joined.temperature, joined.metric, answer, n_places, n_paying, n_costing, n_comparisons, n_invalid, n_open,
       coalesce(where_it_pays, '') AS where_it_pays, coalesce(where_it_does_not, '') AS where_it_does_not, joined.draft AS best_draft, best_method, best_k, best.ratio AS best_ratio, best.ci_low AS best_ci_low, best.ci_high AS best_ci_high,
       best.verdict AS best_verdict, best.place AS best_at,
       best.n_prompts AS n_prompts, best.n_repeats AS n_repeats, coalesce(categories_that_pay, []) AS categories_that_pay,
       coalesce(categories_that_cost, []) AS categories_that_cost, coalesce(joined.causes, []) AS causes,
       CASE WHEN answer = 'unknown' AND n_open > 0 THEN 'The search left out drafts that may pay: they were not asked for.'
            WHEN answer = 'unknown' THEN 'No speculative cell and its baseline are both valid.'
            WHEN answer = 'yes' THEN format('{} serves {:.2f} times as fast at its best, {}{}.', joined.draft, best_ratio, best_at,
                                           coalesce(format(': a step brings {:.2f} tokens (AL) and takes as long as {:.2f} without a draft', of_best.al, of_best.al_break_even), ''))
            WHEN best_verdict <> 'slower' AND best_ratio > 1 AND answer = 'no'
            THEN format('{} prompts do not tell a gain from none: {:.2f} to {:.2f} times as fast are both possible.', joined.best.n_prompts, best_ci_low, best_ci_high)
            ELSE concat_ws(': ', CASE WHEN numbers IS NOT NULL THEN numbers END,
                           coalesce((SELECT string_agg(meaning, '; ' ORDER BY list_position(joined.causes, cause)) FROM advice WHERE list_contains(joined.causes, cause)),
                                    'differences are within noise, or of a kind that was not measured')) || '.' END AS why,
       CASE WHEN answer = 'unknown' AND n_open > 0 THEN 'Run the same command without search.goal: it measures the rest.'
            ELSE CASE answer WHEN 'unknown' THEN 'Look at cell_verdicts: mend what makes the cells invalid, then run the same command again.'
            WHEN 'yes' THEN format('Use {} (draft.method={}, draft.k={}){}.', joined.draft, best_method, best_k,
                                   CASE WHEN n_faster < n_paying THEN format(' at {}; elsewhere another draft', faster_at) ELSE '' END)
                            || coalesce(' Best by load: ' || by_load || '.', '')
            WHEN 'depends' THEN format('Use {} (draft.method={}, draft.k={}) at {}; {}.', joined.draft, best_method, best_k,
                                       CASE WHEN n_faster < n_paying THEN faster_at ELSE where_it_pays END,
                                       CASE WHEN n_faster < n_paying THEN 'elsewhere another draft, or none' ELSE 'serve the rest without speculation' END)
                                || coalesce(' Best by load: ' || by_load || '.', '')
            ELSE CASE WHEN best_verdict <> 'slower' AND best_ratio > 1 THEN 'Measure more prompts (workload.limit) before you decide; until then leave speculation off' ELSE 'Leave speculation off' END || coalesce(', or: ' || (SELECT string_agg(remedy, '; ' ORDER BY list_position(joined.causes, cause)) FROM advice
                                                                   WHERE list_contains(joined.causes, cause)), '') || '.' END END AS what_to_do,
       best.deployment_id AS best_deployment_id, best.condition AS best_condition
FROM joined LEFT JOIN causes of_best ON of_best.run = joined.run AND of_best.deployment_id = best.deployment_id AND of_best.condition = best.condition
LEFT JOIN domains ON domains.run = joined.run AND domains.deployment_id = best.deployment_id AND domains.condition = best.condition
 AND domains.metric = joined.metric;

CREATE MACRO gained(verdict) AS CASE verdict WHEN 'faster' THEN true WHEN 'slower' THEN false END;  -- null = nothing shown
CREATE MACRO best_of(draft) AS format('at concurrency {}, the best draft, {}, is {:.2f} times as fast{}', draft.concurrency, draft.draft, draft.ratio,
                                      CASE WHEN gained(draft.verdict) IS NULL THEN ', which is within noise' ELSE '' END);

CREATE VIEW checklist AS
-- What practice asks before it speculates, answered from data: one row a question (as in `verdicts`, of user TPS) and item; `answer` is 'yes', 'no' or
-- 'unknown', `speaks_for` says whether that speaks for speculation (null = unknown), `evidence` the numbers.
WITH facts AS (
    SELECT run, engine, model, dtype, tp, workload, split, temperature, max(draft_efficiency) FILTER (valid AND is_self IS NULL) AS efficiency,
           arg_max(draft, draft_efficiency) FILTER (valid AND is_self IS NULL) AS efficient_draft, max(kv_lost_share) AS kv_lost_share,
           max(prefill_share) FILTER (valid) AS prefill_share, arg_max(load, prefill_share) FILTER (valid) AS prefill_at,
           max(concurrency) FILTER (valid) AS high, min(concurrency) FILTER (valid) AS low
    FROM causes LEFT JOIN (  -- the target as its own draft foretells everything
        SELECT DISTINCT run, deployment_id, true AS is_self FROM shown_cells WHERE draft_model = cell_json ->> '$.deployment.model.path'
    ) USING (run, deployment_id) GROUP BY ALL
), loads AS (
    SELECT facts.run, facts.engine, facts.model, facts.dtype, facts.tp, facts.workload, facts.split, facts.temperature, arg_max(tried, {is_sure: tried.verdict = 'faster', ratio: tried.ratio}) FILTER (tried.concurrency = high) AS best_high,
           arg_max(tried, {is_sure: tried.verdict = 'faster', ratio: tried.ratio}) FILTER (tried.concurrency = low) AS best_low
    FROM facts JOIN causes AS tried USING (run, engine, model, dtype, tp, workload, split, temperature) WHERE tried.valid GROUP BY ALL
)
SELECT run, engine, model, dtype, tp, workload, split, temperature, unnest([
    {nr: 1, item: 'Is the output structured or predictable?', answer: CASE WHEN efficiency IS NULL THEN 'unknown' WHEN efficiency >= predictable_efficiency THEN 'yes' ELSE 'no' END,
     speaks_for: efficiency >= predictable_efficiency,
     evidence: format('at best {:.0f} % of drafted tokens are accepted, by {}; predictable is {:g} %', 100 * efficiency, efficient_draft, 100 * predictable_efficiency)},
    {nr: 2, item: 'Is it creative, with hot sampling?', answer: CASE WHEN temperature >= hot_temperature THEN 'yes' ELSE 'no' END, speaks_for: temperature < hot_temperature,
     evidence: format('temperature {:g}', temperature)},
    {nr: 3, item: 'Is there room in memory for a draft?', answer: CASE WHEN kv_lost_share IS NULL THEN 'unknown' WHEN kv_lost_share <= high_kv_loss THEN 'yes' ELSE 'no' END,
     speaks_for: kv_lost_share <= high_kv_loss, evidence: CASE WHEN kv_lost_share = 0 THEN 'the KV cache is as large with a draft as without' ELSE format('a draft takes up to {:.1f} % of the KV cache', 100 * kv_lost_share) END},
    {nr: 4, item: 'Is the concurrency high?', answer: CASE WHEN high >= high_concurrency THEN 'yes' WHEN high IS NULL THEN 'unknown' ELSE 'no' END,
     speaks_for: CASE WHEN high >= high_concurrency THEN gained(best_high.verdict) WHEN high IS NOT NULL THEN true END, evidence: CASE WHEN high >= high_concurrency THEN best_of(best_high) ELSE format('at most {} at once were measured; {} is high', high, high_concurrency) END},
    {nr: 5, item: 'Are batches small?', answer: CASE WHEN low IS NULL THEN 'unknown' WHEN low < high_concurrency THEN 'yes' ELSE 'no' END, speaks_for: gained(best_low.verdict),
     evidence: best_of(best_low)},
    {nr: 6, item: 'Does the prefill dominate, as with long contexts?', answer: CASE WHEN prefill_share IS NULL THEN 'unknown' WHEN prefill_share > high_prefill_share THEN 'yes' ELSE 'no' END,
     speaks_for: prefill_share <= high_prefill_share, evidence: format('up to {:.0f} % of a request''s time is before its first token, at {}', 100 * prefill_share, prefill_at)}
], recursive := true)
FROM facts LEFT JOIN loads USING (run, engine, model, dtype, tp, workload, split, temperature), thresholds;
