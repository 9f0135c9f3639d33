-- Owns every metric and every verdict, once. Does not own where rows come from: `recorded_sessions`, `recorded_cells`,
-- `recorded_requests` and `recorded_telemetry` are there already (`storage/views.py`), typed, each with a column `run`.
-- Units are in the names: `_ns` is recorded, `_ms` and `_s` are derived. `list[i]` counts from 1, `position` and `turn` from 0
-- unless said otherwise. Sources in brackets: [SPEED-Bench] the paper and its code, [vLLM] its counters, [AIPerf].

-- ---------------------------------------------------------------------------------------------------------- thresholds
CREATE MACRO confidence() AS 0.95;  -- a quantile must be a constant
CREATE TABLE thresholds AS SELECT  -- what stands behind a limit, its [unit] first where the name does not tell, is its line in `glossary` and docs/sql.md
    3     AS min_requests,  -- [count] answered requests that a valid cell has at least
    0.01::DOUBLE AS max_failed_share,  -- requests of a valid cell that fail, at most
    10.0::DOUBLE AS max_late_send_ms,  -- p99 of sent − scheduled above this, and above max_late_send_share, is late
    0.05::DOUBLE AS max_late_send_share,  -- the same as a share of the median E2E (closed loop) or TTFT (open loop)
    0.8::DOUBLE AS max_client_cpu_share,  -- CPU seconds of the load client / duration of a valid cell, at most
    0.01::DOUBLE AS max_merged_share,  -- chunks of a valid cell that share a read with a later one, whose time they then carry, at most
    0.01::DOUBLE AS max_acceptance_difference,  -- [share] between what steps, counters and chunks say of acceptance, at most
    0.01::DOUBLE AS max_false_alarms,  -- [share] cells whose outputs would be called different by chance, all their statistics together
    -50.0::DOUBLE AS min_logprob,  -- [nats] one below counts as this much: a probability of 0 must not be all that a mean tells
    0.02::DOUBLE AS max_isl_difference,  -- [share] between the mean prompt and the length that was asked for, at most
    1.0::DOUBLE AS max_idle_gib,  -- [GiB] in use on a GPU before the engine started, where the driver tells nobody's process
    0.05::DOUBLE AS max_throttled_share,  -- a GPU's samples in which heat or its hardware slows it down, at most
    0.9::DOUBLE AS min_slo_attainment,  -- [share] requests that meet every limit on latency, for a load to hold [DistServe]
    24.0::DOUBLE AS max_hours_apart,  -- [h] between what is compared, before it is warned of
    0.02::DOUBLE AS min_change,  -- [share] a change of speed from one run to another below this is none: sessions differ by as much
    0.1::DOUBLE AS max_repeat_drift,  -- [share] of user TPS, between a repeat and the first one, before it is warned of
    0.4::DOUBLE AS low_efficiency,  -- [share] accepted / drafted below this is low acceptance
    0.5::DOUBLE AS predictable_efficiency,  -- [share] accepted / drafted from here on: outputs are predictable
    0.3::DOUBLE AS dear_draft_share,  -- drafting above this share of t_ar is dear
    1.5::DOUBLE AS dear_step,  -- [times] t_sd / t_ar above this is dear
    1.2::DOUBLE AS dear_growth,  -- [times] of t_sd / t_ar since the smallest load: above this the batch is too large
    0.5::DOUBLE AS high_prefill_share,  -- of E2E before the first token: above this the prefill dominates
    0.1::DOUBLE AS high_kv_loss,  -- [share] of the KV cache that a draft takes: above this it lacks elsewhere
    0.7::DOUBLE AS hot_temperature,  -- sampling from here on is hot
    32    AS high_concurrency,  -- [requests] concurrency from here on is high
    0.05::DOUBLE AS max_al_shift,  -- [share] of a greedy AL from one concurrency to another, in shape_checks
    0.1::DOUBLE AS max_projection_error,  -- [share] between t_ar * AL / t_sd and the measured speed-up, in shape_checks
    0.05::DOUBLE AS min_category_spread,  -- [share] of AL, between the best and the worst category: a flat one is a broken draft
    500   AS position_bin,  -- [tokens] of output: one bin of AL by output position [SPEED-Bench]
    1000  AS resamples,  -- [count] of the bootstrap
    confidence()::DOUBLE AS confidence,  -- [share] of every interval; shown here, and fixed
    6     AS min_prompts_significant;  -- [prompts] with fewer, all on one side happens by chance in more than 5 % (2 / 2^n)

-- ------------------------------------------------------------------------------------------------------------- formulas
CREATE MACRO percentile(share, value) AS quantile_cont(value, share);  -- exact, interpolated; null for no values

-- The steps that count for AL: without the one that only ended the prefill, and without a last one that a stop cut short
-- [SPEED-Bench trims alike; its published code does not: `al_untrimmed`].
CREATE MACRO counted(steps, first_step_is_prefill, last_step_is_cut) AS
    list_slice(steps, 1 + first_step_is_prefill::INT, greatest(len(steps) - last_step_is_cut::INT, 0));

-- AL = E[L], L = accepted + 1 [SPEED-Bench; vLLM's mean_acceptance_length]. Without steps there is none.
CREATE MACRO acceptance_length(n_accepted, n_steps) AS 1 + n_accepted / nullif(n_steps, 0);

-- Whether a request was answered, to its end.
CREATE MACRO is_whole(error, chunk_gap_ns) AS error = '' AND len(chunk_gap_ns) > 0;

-- Whether a request that was answered meets every limit (s, null = none) on its TTFT and TPOT (ms); null when there is no limit. One
-- without a TPOT, since all came in one chunk, meets any TPOT. One that failed meets none [goodput of DistServe; vLLM's benchmark].
CREATE MACRO meets_limits(is_answered, ttft_ms, slo_ttft_s, tpot_ms, slo_tpot_s) AS
    CASE WHEN slo_ttft_s IS NOT NULL OR slo_tpot_s IS NOT NULL
         THEN is_answered AND coalesce(ttft_ms <= 1e3 * slo_ttft_s, true) AND coalesce(tpot_ms <= 1e3 * slo_tpot_s, true) END;

-- Wilson's 95 % interval of a share of n [Wilson 1927].
CREATE MACRO share_interval(share, n) AS {
    low: greatest(0.0, (share + 1.9208 / n - 1.96 * sqrt(share * (1 - share) / n + 0.9604 / (n * n))) / (1 + 3.8416 / n)),
    high: least(1.0, (share + 1.9208 / n + 1.96 * sqrt(share * (1 - share) / n + 0.9604 / (n * n))) / (1 + 3.8416 / n))
};

-- How much a cumulative counter grew; null when the engine has no such counter, or when it started anew in between.
CREATE MACRO grown(before, after, counter) AS
    CASE WHEN after[counter] >= coalesce(before[counter], 0) THEN after[counter] - coalesce(before[counter], 0) END;

-- The `nth` of a fixed sequence of numbers in [0, 1): no seed, the same in every version of DuckDB.
CREATE MACRO uniform(resample, nth) AS md5_number_lower(resample || ':' || nth) / 18446744073709551616.0;

-- The `nth` of a fixed sequence of coins, +1 or -1; each hash gives 64 of them.
CREATE MACRO coin(resample, nth) AS
    ((md5_number_lower(resample || '/' || (nth // 64)) >> (nth % 64)::INT) & 1)::DOUBLE * 2 - 1;

-- The mean log-probability of an answer's tokens; null when they were not told one for each token.
CREATE MACRO mean_logprob(logprobs, output_ids, least) AS
    CASE WHEN len(logprobs) = len(output_ids) THEN list_avg(list_transform(logprobs, lambda logprob: greatest(logprob, least))) END;

-- The share of an answer's token ids that are there for the first time.
CREATE MACRO distinct_share(ids) AS list_unique(ids) / nullif(len(ids), 0);

-- The share of an answer's 4-grams that repeat an earlier one.
CREATE MACRO repeated_share(ids) AS
    1 - list_unique(list_transform(range(1, len(ids) - 2), lambda i: hash(ids[i:i + 3]))) / nullif(greatest(len(ids) - 3, 0), 0);
