-- Owns one row a draft and condition, over the repeats, as reports show it. Does not own the numbers.

CREATE VIEW speaking_cells AS  -- with whether a cell speaks for its draft and condition: a valid one does; an invalid one where none is valid
SELECT *, valid OR (status = 'ok' AND NOT bool_or(valid) OVER (PARTITION BY run, deployment_id, condition)) AS speaks FROM cells;

-- ------------------------------------------------------------------------------------------------------ drafts, for reports
CREATE VIEW drafts AS
-- One row a deployment and condition, the baseline too: means over the valid repeats, with the least and the most; where none is valid
-- (`n_valid` = 0), over the invalid ones. `baseline_lossless` is the baseline against its own other repeat: what batching alone changes.
-- `outputs` is the gravest verdict on the outputs of all its cells (`identity` of greedy ones, `distribution` of sampled ones),
-- `baseline_outputs` that on the baseline against itself.
WITH measured AS (
    SELECT run, engine, model, method, k, draft, tp, batch, dtype, workload, split, entropy, isl, load, load_kind, concurrency, rate, temperature, variant,
           deployment_id, condition,
           count(*) AS n_cells, count(*) FILTER (WHERE status = 'ok') AS n_ok, count(*) FILTER (WHERE valid) AS n_valid,
           avg(al) FILTER (speaks) AS al, min(al) FILTER (speaks) AS al_min, max(al) FILTER (speaks) AS al_max,
           avg(al_drafted) FILTER (speaks) AS al_drafted,
           avg(user_tps_p50) FILTER (speaks) AS user_tps_p50, min(user_tps_p50) FILTER (speaks) AS user_tps_min, max(user_tps_p50) FILTER (speaks) AS user_tps_max,
           avg(output_tps) FILTER (speaks) AS output_tps, min(output_tps) FILTER (speaks) AS output_tps_min, max(output_tps) FILTER (speaks) AS output_tps_max,
           avg(ttft_ms_p50) FILTER (speaks) AS ttft_ms_p50, min(ttft_ms_p50) FILTER (speaks) AS ttft_ms_min, max(ttft_ms_p50) FILTER (speaks) AS ttft_ms_max,
           avg(tpot_ms_p50) FILTER (speaks) AS tpot_ms_p50, min(tpot_ms_p50) FILTER (speaks) AS tpot_ms_min, max(tpot_ms_p50) FILTER (speaks) AS tpot_ms_max,
           avg(e2e_ms_p50) FILTER (speaks) AS e2e_ms_p50, min(e2e_ms_p50) FILTER (speaks) AS e2e_ms_min, max(e2e_ms_p50) FILTER (speaks) AS e2e_ms_max,
           avg(draft_efficiency) FILTER (speaks) AS draft_efficiency, avg(step_ms) FILTER (speaks) AS step_ms, avg(lossless) FILTER (speaks) AS lossless,
           min(coalesce(identity, distribution)) AS outputs,  -- 'differs' comes first
           bool_or(simulated) AS simulated, bool_or(synthetic) AS synthetic,
           min(pair_id) AS a_pair_id
    FROM speaking_cells GROUP BY ALL
)
SELECT measured.*, base.lossless AS baseline_lossless, base.outputs AS baseline_outputs, baseline_deployment_id
FROM measured
LEFT JOIN (SELECT DISTINCT run, pair_id AS a_pair_id, deployment_id AS baseline_deployment_id FROM shown_cells WHERE method = 'none')
    USING (run, a_pair_id)
LEFT JOIN (SELECT run, deployment_id, condition, lossless, outputs FROM measured WHERE method = 'none') base
    ON base.run = measured.run AND base.deployment_id = baseline_deployment_id AND base.condition = measured.condition;

CREATE VIEW draft_categories AS  -- acceptance and speed by category: means over the repeats that speak, with the least and the most
SELECT run, deployment_id, condition, category, bool_and(valid) AS valid, count(*) AS n_repeats,
       avg(categories.al) AS al, min(categories.al) AS al_min, max(categories.al) AS al_max,
       avg(user_tps_p50) AS user_tps_p50, min(user_tps_p50) AS user_tps_min, max(user_tps_p50) AS user_tps_max
FROM categories JOIN (SELECT run, cell_id, deployment_id, condition, valid FROM speaking_cells WHERE speaks) USING (run, cell_id)
GROUP BY run, deployment_id, condition, category;
