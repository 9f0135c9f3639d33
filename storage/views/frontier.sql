-- Owns what can be chosen: speed for a user against throughput, the best draft for each load, and what limits on latency allow.
-- Does not own what was measured.

CREATE VIEW frontier AS
-- One row a deployment and load of a setting (model, workload, sampling), over its valid cells only: means over repeats, with the least and the most.
-- `tps_per_device` is a GPU's output TPS, or the node's where there is none; `device` is what kind of GPU, and other kinds are not compared with.
-- `on_frontier`: no other point of the setting and device serves a user faster and gives more throughput; `on_own_frontier`: none of its own kind ('baseline' or 'speculative').
WITH points AS MATERIALIZED (
    SELECT run, engine, model, method, k, draft, tp, batch, dtype, workload, split, entropy, isl, load, load_kind, concurrency, rate, temperature, variant,
           CASE method WHEN 'none' THEN 'baseline' ELSE 'speculative' END AS kind, count(*) AS n_repeats,
           avg(user_tps_p50) AS user_tps, min(user_tps_p50) AS user_tps_min, max(user_tps_p50) AS user_tps_max,
           CASE WHEN output_tps_per_gpu IS NULL THEN 'node' ELSE coalesce(nullif(gpu_names, ''), 'GPU') END AS device,
           avg(coalesce(output_tps_per_gpu, output_tps)) AS tps_per_device, min(coalesce(output_tps_per_gpu, output_tps)) AS tps_per_device_min,
           max(coalesce(output_tps_per_gpu, output_tps)) AS tps_per_device_max, avg(output_tps) AS output_tps, avg(al) AS al,
           md5(concat_ws('|', model, json_merge_patch(condition, '{"load": null, "workload": {"limit": null}}')::VARCHAR)) AS setting,
           deployment_id, condition
    FROM cells LEFT JOIN (SELECT run, session_id, array_to_string(list_sort(list_distinct(gpus_json ->> '$[*].name')), ' + ') AS gpu_names FROM sessions)
         USING (run, session_id)
    WHERE valid AND user_tps_p50 IS NOT NULL AND output_tps IS NOT NULL GROUP BY ALL
), beaten AS (
    SELECT point.run, point.deployment_id, point.condition, point.device, bool_or(other.kind = point.kind) AS by_own
    FROM points point JOIN points other ON other.run = point.run AND other.setting = point.setting AND other.device = point.device
     AND other.user_tps >= point.user_tps AND other.tps_per_device >= point.tps_per_device
     AND (other.user_tps > point.user_tps OR other.tps_per_device > point.tps_per_device)
    GROUP BY ALL
)
SELECT points.*, by_own IS NULL AS on_frontier, NOT coalesce(by_own, false) AS on_own_frontier
FROM points LEFT JOIN beaten USING (run, deployment_id, condition, device);

CREATE VIEW best_drafts AS
-- For each setting, load and metric the draft with the highest speed-up among valid comparisons, significant ones first; 'none' when not one is above
-- 1. `is_clear`: it is significantly faster than without, and its interval lies above the ratio of the runner-up. n_drafts were compared, n_invalid were not; a search left
-- `n_not_searched` out that may be better, and then nothing is clear.
WITH judged AS MATERIALIZED (SELECT * FROM draft_speedups WHERE category = 'all' AND ratio IS NOT NULL),
ranked AS (
    SELECT *, row_number() OVER place AS rank, lead(draft) OVER place AS runner_up, lead(ratio) OVER place AS runner_up_ratio,
           count(*) OVER (PARTITION BY run, baseline_deployment_id, condition, metric) AS n_drafts
    FROM judged WHERE valid WINDOW place AS (PARTITION BY run, baseline_deployment_id, condition, metric ORDER BY verdict = 'faster' DESC, ratio DESC, draft)
), invalid AS (
    SELECT run, baseline_deployment_id, condition, metric, count(*) AS n_invalid FROM judged WHERE NOT valid GROUP BY ALL
)
SELECT run, engine, model, dtype, tp, batch, workload, split, entropy, isl, temperature, load, load_kind, concurrency, rate, variant, metric,
       CASE WHEN ratio > 1 THEN draft ELSE 'none' END AS best_draft, CASE WHEN ratio > 1 THEN method ELSE 'none' END AS best_method,
       CASE WHEN ratio > 1 THEN k ELSE 0 END AS best_k, draft AS leader, method AS leader_method, k AS leader_k, ratio, ci_low, ci_high, significant, verdict,
       n_prompts, n_repeats, runner_up, runner_up_ratio,
       verdict = 'faster' AND coalesce(ci_low > runner_up_ratio, true) AND open_places.n_not_searched IS NULL AS is_clear, n_drafts, coalesce(n_invalid, 0) AS n_invalid,
       coalesce(open_places.n_not_searched, 0) AS n_not_searched,
       deployment_id, baseline_deployment_id, condition
FROM ranked LEFT JOIN invalid USING (run, baseline_deployment_id, condition, metric)
LEFT JOIN open_places USING (run, baseline_deployment_id, condition, metric) WHERE rank = 1;

CREATE MACRO goodput_under(ttft_s, tpot_s) AS TABLE
-- What any limits (s; null = none) allow, asked afterwards: FROM goodput_under(0.5, 0.05). One row a valid cell.
SELECT run, cell_id, engine, model, method, k, draft, batch, workload, isl, load, concurrency, rate, temperature, variant, repeat,
       count(*) AS n_requests, avg(meets_limits(is_answered, request_ttft_ms, ttft_s, request_tpot_ms, tpot_s)::INT) AS slo_attainment,
       sum(meets_limits(is_answered, request_ttft_ms, ttft_s, request_tpot_ms, tpot_s)::INT) / nullif(any_value(duration_s), 0) AS goodput_rps,
       deployment_id, condition
FROM (SELECT run, cell_id, is_answered, ttft_ms AS request_ttft_ms, tpot_ms AS request_tpot_ms FROM requests)
JOIN (SELECT * FROM cells WHERE valid) USING (run, cell_id) GROUP BY ALL;

CREATE VIEW goodput AS
-- What the limits that were recorded with the cells allow: one row a deployment and load over its valid cells. Limits are those that the
-- configuration had when a cell was measured, and stay with it; `goodput_under` asks for others. `holds`: at least `min_slo_attainment` of the
-- requests meet every limit. `is_best`: the highest goodput of this deployment among the loads at which it holds.
WITH points AS (
    SELECT run, engine, model, method, k, draft, tp, batch, workload, isl, load, load_kind, concurrency, rate, temperature, variant, slo_ttft_s, slo_tpot_s,
           count(*) AS n_repeats, sum(n_requests)::BIGINT AS n_requests, avg(slo_attainment) AS slo_attainment, min(slo_attainment) AS slo_attainment_min,
           share_interval(avg(slo_attainment), sum(n_requests)) AS attainment_interval, avg((n_requests - n_failed) / duration_s) AS answered_rps,
           avg(goodput_rps) AS goodput_rps, min(goodput_rps) AS goodput_rps_min, max(goodput_rps) AS goodput_rps_max,
           any_value(gpus) AS n_gpus, deployment_id, condition,
           json_merge_patch(condition, '{"load": null, "workload": {"limit": null}}')::VARCHAR AS unloaded
    FROM cells LEFT JOIN (SELECT run, session_id, nullif(json_array_length(gpus_json), 0) AS gpus FROM sessions) USING (run, session_id)
    WHERE valid AND slo_attainment IS NOT NULL GROUP BY ALL
), compared AS (  -- of all repeats, so that one that is invalid hides no pair
    SELECT run, deployment_id, condition, min(pair_id) AS a_pair_id FROM shown_cells GROUP BY ALL
), paired AS (
    SELECT * FROM points JOIN compared USING (run, deployment_id, condition)
)
SELECT points.* EXCLUDE (unloaded, a_pair_id, attainment_interval), points.attainment_interval.low AS slo_attainment_low, points.attainment_interval.high AS slo_attainment_high,
       points.goodput_rps / points.n_gpus AS goodput_rps_per_gpu,
       points.slo_attainment >= min_slo_attainment AS holds,
       holds AND row_number() OVER (PARTITION BY points.run, points.deployment_id, points.unloaded, points.slo_ttft_s, points.slo_tpot_s
                                    ORDER BY holds DESC, points.goodput_rps DESC) = 1 AS is_best,
       base.goodput_rps AS baseline_goodput_rps, points.goodput_rps / nullif(base.goodput_rps, 0) AS goodput_ratio
FROM paired points CROSS JOIN thresholds
LEFT JOIN paired base ON base.run = points.run AND base.condition = points.condition AND base.method = 'none' AND base.a_pair_id = points.a_pair_id
      AND base.slo_ttft_s IS NOT DISTINCT FROM points.slo_ttft_s AND base.slo_tpot_s IS NOT DISTINCT FROM points.slo_tpot_s;
