-- Owns the cell as users see it: every metric, whether it is valid and why not, and what to do. Does not own comparisons.

-- ------------------------------------------------------------------------------------------------------ cells, categories
CREATE VIEW gpu_health AS
-- One row a cell on GPUs: how they were while it ran, the worst of them. NVML's bits of why a clock is below the highest: 4 the power limit,
-- which is how a busy GPU is; 8 + 32 + 64 + 128 heat and slowdowns by the hardware. Energy is the device's own counter, else power x time.
-- `other_processes` is null where the driver does not tell them, or in a container tells none of ours.
WITH devices AS (
    SELECT run, cell_id, device, coalesce(max(energy_j) - min(energy_j), avg(power_w) * (max(t_ns) - min(t_ns)) / 1e9) AS energy_j,
           avg(((throttle_reasons & 232) <> 0)::INT) AS throttled_share, avg(((throttle_reasons & 4) <> 0)::INT) AS power_capped_share,
           max(other_processes) AS other_processes, max(other_memory_bytes) AS other_memory_bytes, max(temperature_c) AS temperature_c,
           count(xid) + coalesce(max(ecc_uncorrected) - min(ecc_uncorrected), 0) AS n_errors
    FROM telemetry WHERE device <> 'cpu' GROUP BY ALL
)
SELECT run, cell_id, count(*) AS n_gpus, CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
       max(throttled_share) AS throttled_share, max(power_capped_share) AS power_capped_share, max(other_processes) AS other_processes,
       max(other_memory_bytes) AS other_memory_bytes, max(temperature_c) AS temperature_c, sum(n_errors)::BIGINT AS n_errors
FROM devices GROUP BY ALL;

CREATE VIEW cells AS
-- One row a cell. `al` is step-weighted: it is what E[L] of `acceptance`, the engines' counters and t_ar·AL/t_sd mean. SPEED-Bench
-- averages over requests: `al_request_mean`. `al` is over all steps, `al_drafted` over those in which something was drafted, and
-- never is one shown as the other. `acceptance_source` says where both come from: the steps that the engine told, its counters over the
-- cell, or the mean of its own summaries; '' without speculation, where AL is 1. `al_chunks` is tokens a chunk, as the client saw them.
WITH macro_mean AS (
    SELECT run, cell_id, avg(al_step_weighted) AS al_macro FROM metrics WHERE category <> 'all' GROUP BY run, cell_id  -- [AIPerf]
), session_facts AS (
    SELECT run, session_id, engine_version, simulated, json_array_length(gpus_json) AS gpus, node, git_commit,
           list_max((gpus_json ->> '$[*].used_bytes')::BIGINT[]) AS held_before_bytes,  -- on a GPU before the engine started, by others
           regexp_replace(effective_config_json ->> '$.dtype', '^torch\.', '') AS effective_dtype
    FROM sessions
), joined AS (
    SELECT facts.*, overall.* EXCLUDE (run, cell_id, category), al_macro, steady_s, steady_output_tps,
           lossless, n_compared, first_difference_min, first_difference_p50, baseline_lossless,
           CASE WHEN is_greedy THEN output_verdicts.verdict END AS identity,
           CASE WHEN NOT is_greedy THEN output_verdicts.verdict END AS distribution,
           output_verdicts.p AS output_p,
           session_facts.* EXCLUDE (run, session_id),
           CASE WHEN n_gpus >= session_facts.gpus THEN energy_j END AS energy_j,  -- of an engine over several nodes only rank 0's GPUs are sampled
           throttled_share, power_capped_share, other_processes, n_errors,
           grown(counters_before, counters_after, 'accepted_tokens') AS n_counted_accepted,
           grown(counters_before, counters_after, 'drafts') AS n_counted_drafts,
           -- Counters know drafted steps only. Each other step gave one token, and so did each prefill. What a stop cut off is counted as
           -- accepted, so that this may miss as many steps, up to k a request.
           greatest(n_counted_drafts, coalesce(grown(counters_before, counters_after, 'output_tokens'), n_output_tokens)
                                      - n_answered - n_counted_accepted) AS n_counted_steps,
           acceptance_length(n_counted_accepted, n_counted_steps) AS al_counters,
           acceptance_length(n_counted_accepted, n_counted_drafts) AS al_drafted_counters,
           CASE WHEN method = 'none' THEN NULL WHEN n_all_steps > 0 THEN n_all_steps
                ELSE coalesce(n_counted_steps + n_answered, n_output_tokens / engine_al_mean) END AS n_engine_steps,  -- prefills too
           list_aggregate(late_send_ns, 'quantile_cont', 0.99) / 1e6 AS late_send_ms_p99,
           -- A merged read mistimes a chunk at least; the stamps say how many.
           greatest(merged_reads, n_merged_chunks) / nullif(n_chunks, 0) AS merged_share,
           n_output_tokens / nullif(duration_s, 0) AS output_tps,
           n_within_slos / nullif(duration_s, 0) AS goodput_rps  -- requests a second that meet every limit (`meets_limits`)
    FROM shown_cells facts
    LEFT JOIN (FROM metrics WHERE category = 'all') overall USING (run, cell_id)
    LEFT JOIN macro_mean USING (run, cell_id)
    LEFT JOIN steady_output USING (run, cell_id)
    LEFT JOIN losslessness USING (run, cell_id)
    LEFT JOIN output_verdicts USING (run, cell_id)
    LEFT JOIN session_facts USING (run, session_id)
    LEFT JOIN gpu_health USING (run, cell_id)
), judged AS (
    SELECT *,
        list_filter([
            CASE status WHEN 'failed' THEN 'failed' WHEN 'not_measured' THEN 'not_measured' END,
            CASE WHEN status = 'ok' AND (coalesce(n_requests - n_failed, 0) < min_requests
                                         OR (load_kind = 'closed' AND n_conversations < concurrency)) THEN 'too_few_requests' END,
            CASE WHEN n_failed > max_failed_share * n_requests THEN 'errors' END,
            CASE WHEN late_send_ms_p99 > max_late_send_ms
                  AND late_send_ms_p99 > max_late_send_share * (CASE load_kind WHEN 'closed' THEN e2e_ms_p50 ELSE ttft_ms_p50 END)
                 THEN 'late_sends' END,
            CASE WHEN NOT caches_reset THEN 'caches_not_reset' END,
            CASE WHEN client_cpu_share > max_client_cpu_share THEN 'client_saturated' END,
            CASE WHEN merged_share > max_merged_share THEN 'chunks_merged' END,  -- by a late client or the engine itself: unknown
            CASE WHEN max_chunk_tokens > greatest(k, max_drafted) + 1
                   OR n_answered_chunks < (1 - max_acceptance_difference) * n_engine_steps THEN 'steps_merged' END,
            CASE WHEN abs(al_drafted_untrimmed / al_drafted_counters - 1) > max_acceptance_difference
                   OR n_answered_chunks > (1 + max_acceptance_difference) * n_engine_steps + n_answered * greatest(k, max_drafted)
                 THEN 'acceptance_mismatch' END,
            CASE WHEN identity = 'differs' AND 'float32' IN (dtype, effective_dtype) THEN 'outputs_differ' END,  -- others round by shape
            CASE WHEN distribution = 'differs' AND method <> 'none' THEN 'distribution_differs' END,
            CASE WHEN clock_stepped THEN 'clock_stepped' END,
            -- In a container the driver may tell nobody's process, or none of ours. So much is no driver's own.
            CASE WHEN other_processes > 0 OR (other_processes IS NULL AND held_before_bytes > max_idle_gib * 1024 ** 3) THEN 'gpu_not_idle' END,
            CASE WHEN throttled_share > max_throttled_share THEN 'gpu_throttled' END,
            CASE WHEN n_errors > 0 THEN 'gpu_error' END,
            CASE WHEN ignore_eos AND method <> 'none' THEN 'forced_length' END,
            CASE WHEN isl > 0 AND workload <> 'speed_bench_throughput'  -- which counts in another tokenizer's tokens
                  AND abs(prompt_tokens_mean - isl) > max_isl_difference * isl THEN 'isl_off' END,
            CASE WHEN declared_engine_version <> '' AND engine_version <> '' AND NOT starts_with(ltrim(engine_version, 'b'), ltrim(declared_engine_version, 'b'))  -- 0.32.0+cpu, b7000-abc
                 THEN 'engine_version_differs' END
        ], lambda reason: reason IS NOT NULL) AS reasons
    FROM joined, thresholds
)
SELECT
    run, cell_id, status, len(reasons) = 0 AS valid, reasons, engine, model, method, k, tp, draft_tp, batch, workload, isl, concurrency,
    temperature, repeat,
    CASE WHEN method = 'none' THEN CASE WHEN n_output_tokens > 0 THEN 1.0 END
         ELSE coalesce(al_step_weighted, al_counters, engine_al_mean) END AS al,
    CASE WHEN method = 'none' THEN CASE WHEN n_output_tokens > 0 THEN 1.0 END ELSE al_untrimmed END AS al_untrimmed,
    CASE WHEN method = 'none' OR al IS NULL THEN '' WHEN al_step_weighted IS NOT NULL THEN 'steps'
         WHEN al_counters IS NOT NULL THEN 'counters' ELSE 'summary' END AS acceptance_source,
    output_tps, user_tps_p50, ttft_ms_p50, ttft_ms_p90, ttft_ms_p99, tpot_ms_p50, tpot_ms_p90, tpot_ms_p99,
    coalesce(n_requests, 0) AS n_requests, coalesce(n_failed, 0) AS n_failed, lossless, duration_s,
    -- beyond the names that people script against
    draft, draft_model, dtype, split, entropy, ignore_eos, censored_share, valid_share, load, load_kind, rate, variant, attempt, position, started_at, error_kind, error,
    al_step_weighted, coalesce(al_request_mean, engine_al_mean) AS al_request_mean, al_macro,
    coalesce(al_drafted, al_drafted_counters) AS al_drafted, al_counters, al_drafted_counters, al_chunks,
    coalesce(draft_efficiency, n_counted_accepted / nullif(grown(counters_before, counters_after, 'draft_tokens'), 0)) AS draft_efficiency,
    n_output_tokens, prompt_tokens_mean, steady_output_tps, steady_s, output_tps / nullif(gpus, 0) AS output_tps_per_gpu,
    slo_ttft_s, slo_tpot_s, slo_attainment, goodput_rps,
    e2e_ms_p50, e2e_ms_p90, e2e_ms_p99, user_tps_p10, step_ms,
    n_compared, baseline_lossless, identity, first_difference_min, first_difference_p50, distribution, output_p, synthetic, late_send_ms_p99, merged_reads, merged_share, loop_lag_ms_max,
    energy_j, throttled_share, power_capped_share, client_cpu_share, load_average, coalesce(simulated, false) AS simulated, engine_version, node, git_commit,
    session_id, invocation_id, deployment_id, pair_id, condition, cell_json
FROM judged;

CREATE VIEW categories AS  -- one row a cell and category; the same formulas as in `cells`
SELECT run, cell_id, category,
       CASE method WHEN 'none' THEN 1.0 ELSE coalesce(al_step_weighted, engine_al_mean) END AS al, user_tps_p50,
       engine, model, method, k, draft, workload, concurrency, repeat,
       metrics.* EXCLUDE (run, cell_id, category, user_tps_p50)
FROM metrics JOIN shown_cells USING (run, cell_id) WHERE category <> 'all';

CREATE VIEW remedies AS  -- of every reason in `cells`: the rule that was broken, with its limit, and what to do
SELECT unnest([
    {reason: 'failed', rule: 'the cell must be measured to its end', remedy: 'read its error, then run the same command again'},
    {reason: 'not_measured', rule: 'the cell must have been reached', remedy: 'run the same command again'},
    {reason: 'too_few_requests', rule: format('at least {} answered requests, and as many conversations as slots', min_requests),
     remedy: 'raise workload.limit'},
    {reason: 'errors', rule: format('at most {:g} % of requests fail', 100 * max_failed_share), remedy: 'read requests.error and the engine''s log'},
    {reason: 'late_sends', rule: format('p99 of sent - due at most {:g} ms or {:g} % of the latency', max_late_send_ms, 100 * max_late_send_share),
     remedy: 'give the load client a free core, or lower the load'},
    {reason: 'caches_not_reset', rule: 'caches are empty when a cell begins', remedy: 'leave engine.prefix_cache off'},
    {reason: 'client_saturated', rule: format('the load client uses at most {:g} % of a core', 100 * max_client_cpu_share),
     remedy: 'lower load.concurrency or the rate, or use a faster node'},
    {reason: 'chunks_merged', rule: format('at most {:g} % of chunks share a read', 100 * max_merged_share),
     remedy: 'give the load client a free core; if the engine sends them at once, stream every step'},
    {reason: 'steps_merged', rule: format('a chunk holds one step: at most k + 1 tokens, and within {:g} % as many chunks as steps', 100 * max_acceptance_difference),
     remedy: 'have the engine stream every step (stream interval 1), or lower the load; acceptance by steps and counters still holds'},
    {reason: 'acceptance_mismatch', rule: format('steps, counters and chunks agree on acceptance within {:g} %', 100 * max_acceptance_difference),
     remedy: 'see al_drafted, al_drafted_counters, al and al_chunks in cells: somebody else may use the engine, or it sends a step in parts'},
    {reason: 'outputs_differ', rule: format('in float32, greedy outputs differ from the baseline''s no more than its own repeat does (sign-flip test, at most {:g} % false alarms)', 100 * max_false_alarms),
     remedy: 'see divergences; this draft is not lossless here'},
    {reason: 'distribution_differs', rule: format('sampled outputs are drawn as the baseline''s (sign-flip tests, Holm, at most {:g} % false alarms)', 100 * max_false_alarms),
     remedy: 'see distributions and read some outputs; do not sample with this draft on this engine'},
    {reason: 'clock_stepped', rule: 'nobody sets the wall clock while a cell runs', remedy: 'measure again'},
    {reason: 'gpu_not_idle', rule: format('no process of others computes on the session''s GPUs; untold ones hold at most {:g} GiB before the engine starts', max_idle_gib),
     remedy: 'free the GPUs (gpu_health says how much was held, or sessions.gpus_json before the engine started), then measure again'},
    {reason: 'gpu_throttled', rule: format('heat or hardware slows a GPU down in at most {:g} % of the samples', 100 * max_throttled_share),
     remedy: 'cool the node or lower its power limit, and measure again; see gpu_health'},
    {reason: 'gpu_error', rule: 'no Xid or uncorrected memory error while a cell runs', remedy: 'see telemetry.xid and ecc_uncorrected; take the GPU out of service'},
    {reason: 'forced_length', rule: 'a speculative cell lets the model stop by itself: what it is forced to add is easily foretold',
     remedy: 'leave workload.ignore_eos off, and raise workload.output_limit'},
    {reason: 'isl_off', rule: format('prompts have the length that was asked for within {:g} %, in the target''s own tokens', 100 * max_isl_difference),
     remedy: 'see prompt_tokens_mean in cells; use workload=synthetic, or leave workload.isl out'},
    {reason: 'engine_version_differs', rule: 'the engine is of the version that was asked for', remedy: 'install it, or change engine.version'}
], recursive := true)
FROM thresholds;

CREATE VIEW parts AS
-- One row a cell and part of its answers, of models that mark their thoughts: 'thinking' and 'answer'. A step belongs to the part in which
-- its first token lies; the mark that ends the thoughts is one of them. `n_tokens` is whole answers', where an engine tells steps or not.
WITH told AS (
    SELECT run, cell_id, index, turn, n_thinking_tokens, n_output_tokens FROM requests WHERE is_answered AND n_thinking_tokens IS NOT NULL
), tokens AS (
    SELECT run, cell_id, part.name AS part, count(*) FILTER (part.n > 0) AS n_requests, sum(part.n)::BIGINT AS n_tokens
    FROM (SELECT run, cell_id, unnest([{name: 'thinking', n: least(n_thinking_tokens, n_output_tokens)},
                                       {name: 'answer', n: greatest(n_output_tokens - n_thinking_tokens, 0)}]) AS part FROM told)
    GROUP BY ALL
), placed AS (
    SELECT run, cell_id, n_thinking_tokens, accepted, drafted, is_counted,
           coalesce(sum(length) OVER (PARTITION BY run, cell_id, index, turn ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS n_before
    FROM steps JOIN told USING (run, cell_id, index, turn)
), counted_steps AS (
    SELECT run, cell_id, CASE WHEN n_before < n_thinking_tokens THEN 'thinking' ELSE 'answer' END AS part, count(*) AS n_steps,
           sum(accepted)::BIGINT AS n_accepted, sum(drafted)::BIGINT AS n_drafted
    FROM placed WHERE is_counted GROUP BY ALL
)
SELECT run, cell_id, part, engine, model, draft, workload, repeat, n_requests, n_tokens, n_steps, n_accepted, n_drafted,
       CASE WHEN method = 'none' THEN 1.0 ELSE acceptance_length(n_accepted, n_steps) END AS al
FROM tokens LEFT JOIN counted_steps USING (run, cell_id, part) JOIN shown_cells USING (run, cell_id);

CREATE VIEW inflations AS
-- A cell with random tokens beside the same measurement with real text of the same length: by what share AL and speed are too high
-- [SPEED-Bench, Fig. 6: throughput by 23 %]. Without speculation the speeds should agree; a mixture of experts is faster there, too.
WITH kinds AS MATERIALIZED (
    SELECT *, json_merge_patch(condition, '{"workload": {"name": null, "entropy": null, "categories": null, "limit": null, "seed": null}}')::VARCHAR
              AS same_condition
    FROM cells WHERE status = 'ok' AND isl > 0
)
SELECT random.run, random.cell_id, real.cell_id AS real_cell_id, real.workload AS real_workload, real.entropy, random.engine, random.model,
       random.method, random.draft, random.isl, random.load, random.repeat, random.variant,
       random.al, real.al AS real_al, CASE WHEN random.method <> 'none' THEN random.al / real.al - 1 END AS al_inflation,
       random.user_tps_p50 AS user_tps, real.user_tps_p50 AS real_user_tps, random.user_tps_p50 / real.user_tps_p50 - 1 AS user_tps_inflation,
       random.censored_share, real.censored_share AS real_censored_share, random.valid AND real.valid AS valid
FROM kinds random JOIN kinds real
  ON real.run = random.run AND real.deployment_id = random.deployment_id AND real.same_condition = random.same_condition
 AND real.repeat = random.repeat AND real.workload <> 'random_tokens'
WHERE random.workload = 'random_tokens';

CREATE VIEW draft_inflations AS  -- means over the valid pairs of a draft and setting (where there are none, over all); the shares are of those means
SELECT * EXCLUDE (least, most), CASE WHEN method <> 'none' THEN al / real_al - 1 END AS al_inflation, user_tps / real_user_tps - 1 AS user_tps_inflation,
       least AS user_tps_inflation_min, most AS user_tps_inflation_max
FROM (
    SELECT run, engine, model, method, draft, isl, load, variant, real_workload, entropy, bool_and(valid) AS valid, count(*) AS n_pairs, avg(al) AS al, avg(real_al) AS real_al,
           avg(user_tps) AS user_tps, avg(real_user_tps) AS real_user_tps, min(user_tps_inflation) AS least, max(user_tps_inflation) AS most
    FROM (SELECT *, bool_or(valid) OVER (PARTITION BY run, engine, model, method, draft, isl, load, variant, real_workload, entropy) AS is_any_valid FROM inflations)
    WHERE valid OR NOT is_any_valid GROUP BY ALL);
