-- Owns one row a draft and condition, over the repeats, as reports show it. Does not own the numbers.

-- ------------------------------------------------------------------------------------------------------ drafts, for reports
CREATE VIEW drafts AS
-- One row a deployment and condition, the baseline too: means over the repeats that were measured. `baseline_lossless` is the baseline
-- against its own other repeat: what batching alone changes. `outputs` is the gravest verdict on the outputs of its cells (`identity`
-- of greedy ones, `distribution` of sampled ones), `baseline_outputs` that on the baseline against itself.
WITH measured AS (
    SELECT run, engine, model, method, k, draft, tp, batch, dtype, workload, split, entropy, isl, load, load_kind, concurrency, rate, temperature,
           deployment_id, condition,
           count(*) AS n_cells, count(*) FILTER (WHERE status = 'ok') AS n_ok, count(*) FILTER (WHERE valid) AS n_valid,
           avg(al) AS al, avg(al_drafted) AS al_drafted, avg(user_tps_p50) AS user_tps_p50, avg(output_tps) AS output_tps, avg(ttft_ms_p50) AS ttft_ms_p50,
           avg(tpot_ms_p50) AS tpot_ms_p50, avg(e2e_ms_p50) AS e2e_ms_p50, avg(draft_efficiency) AS draft_efficiency,
           avg(step_ms) AS step_ms, avg(lossless) AS lossless, min(coalesce(identity, distribution)) AS outputs,  -- 'differs' comes first
           bool_or(simulated) AS simulated, bool_or(synthetic) AS synthetic,
           min(pair_id) AS a_pair_id
    FROM cells GROUP BY ALL
)
SELECT measured.*, base.lossless AS baseline_lossless, base.outputs AS baseline_outputs, baseline_deployment_id
FROM measured
LEFT JOIN (SELECT DISTINCT run, pair_id AS a_pair_id, deployment_id AS baseline_deployment_id FROM shown_cells WHERE method = 'none')
    USING (run, a_pair_id)
LEFT JOIN (SELECT run, deployment_id, condition, lossless, outputs FROM measured WHERE method = 'none') base
    ON base.run = measured.run AND base.deployment_id = baseline_deployment_id AND base.condition = measured.condition;

CREATE VIEW draft_categories AS  -- acceptance and speed by category, means over the repeats
SELECT run, deployment_id, condition, category, avg(categories.al) AS al, avg(user_tps_p50) AS user_tps_p50
FROM categories JOIN (SELECT run, cell_id, deployment_id, condition FROM shown_cells WHERE status = 'ok') USING (run, cell_id)
GROUP BY run, deployment_id, condition, category;
