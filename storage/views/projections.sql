-- Owns what acceptance and step times promise, beside what was measured, and where a speculative step's time goes.
-- Does not own the measured ratios.

CREATE VIEW projections AS
-- The speed-up that acceptance and step times promise: S = t_ar · AL / t_sd [SPEED-Bench, App. H], beside the measured one of user TPS.
-- `al_break_even` = t_sd / t_ar is the AL above which speculation pays. The step's overhead t_sd - t_ar is split by a drafter that costs next
-- to nothing (n-grams, suffixes; a valid cell) with the same `k` in the same measurement: what its steps take longer is verifying k more tokens, counting
-- only steps in which it drafted; the rest is drafting. `split_by` names it; null = there is none, and nothing is split.
-- Of an engine that tells no steps, AL is that of its counters or summaries (`acceptance_source` of `cells`), and a chunk is a step.
WITH sides AS MATERIALIZED (FROM metrics JOIN (SELECT run, cell_id, k, method, draft, repeat, engine FROM shown_cells WHERE status = 'ok') USING (run, cell_id)),
paired AS (
    SELECT pairs.run, pairs.cell_id, baseline_cell_id, baseline_deployment_id, condition, fast.category, fast.k, fast.method, fast.draft, fast.repeat,
           base.step_ms AS t_ar_ms, fast.step_ms AS t_sd_ms,
           coalesce(fast.al_step_weighted, CASE fast.category WHEN 'all' THEN told.al ELSE fast.engine_al_mean END) AS al,
           coalesce(fast.n_drafting_steps / nullif(fast.n_steps, 0), CASE fast.category WHEN 'all' THEN (told.al - 1) / nullif(told.al_drafted - 1, 0) END)
               AS drafting_share, valid
    FROM pairs JOIN (SELECT run, cell_id, valid, al, al_drafted FROM judged_pairs) told USING (run, cell_id) JOIN sides fast USING (run, cell_id)
    JOIN sides base ON base.run = pairs.run AND base.cell_id = baseline_cell_id AND base.category = fast.category
), free AS (
    SELECT run, baseline_deployment_id, condition, category, repeat, k, arg_max(draft, drafting_share) AS split_by,
           arg_max((t_sd_ms - t_ar_ms) / drafting_share, drafting_share) AS verify_ms
    FROM paired WHERE valid AND method IN ('ngram', 'suffix') AND drafting_share > 0 GROUP BY ALL
), measured AS (
    SELECT run, subject AS cell_id, category, ratio AS measured, n_prompts FROM observed_gains WHERE level = 'cell' AND metric = 'user_tps'
)
SELECT run, cell_id, baseline_cell_id, category, t_ar_ms, t_sd_ms, al, t_ar_ms * al / t_sd_ms AS projected,
       measured, projected / nullif(measured, 0) - 1 AS projection_error, n_prompts,
       t_sd_ms / nullif(t_ar_ms, 0) AS al_break_even, t_sd_ms - t_ar_ms AS overhead_ms,
       CASE WHEN method IN ('ngram', 'suffix') AND split_by IS NOT NULL THEN overhead_ms ELSE verify_ms * drafting_share END AS verify_overhead_ms,
       overhead_ms - verify_overhead_ms AS draft_overhead_ms, split_by, drafting_share
FROM paired LEFT JOIN free USING (run, baseline_deployment_id, condition, category, repeat, k) LEFT JOIN measured USING (run, cell_id, category);

CREATE VIEW projected_lengths AS
-- What a shorter draft would give: of a measured cell with k, for each length 1..k, AL by its acceptance by position and the step time on the
-- line from t_ar (nothing drafted) to the measured t_sd; steps without a draft stay as frequent. A guess to choose what to measure next, no result.
SELECT run, cell_id, k, position AS k_projected,
       1 + coalesce(drafting_share, 1) * sum(ar_joint) OVER (PARTITION BY run, cell_id ORDER BY position) AS al,
       t_ar_ms + (whole_ms - t_ar_ms) * position / k AS t_sd_ms,
       t_ar_ms * al / t_sd_ms AS projected
FROM acceptance JOIN (SELECT run, cell_id, k FROM shown_cells) USING (run, cell_id)
JOIN (SELECT run, cell_id, t_ar_ms, t_sd_ms AS whole_ms, drafting_share FROM projections WHERE category = 'all') USING (run, cell_id)
WHERE position <= k;
