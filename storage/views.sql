-- Owns every metric and every verdict, once. Does not own where rows come from: `recorded_sessions`, `recorded_cells`,
-- `recorded_requests` and `recorded_telemetry` are there already (`storage/views.py`), typed, each with a column `run`.
-- Units are in the names: `_ns` is recorded, `_ms` and `_s` are derived. `list[i]` counts from 1, `position` and `turn` from 0
-- unless said otherwise. Sources in brackets: [SPEED-Bench] the paper and its code, [vLLM] its counters, [AIPerf].

-- ---------------------------------------------------------------------------------------------------------- thresholds
CREATE MACRO confidence() AS 0.95;  -- a quantile must be a constant
CREATE TABLE thresholds AS SELECT
    3     AS min_requests,               -- answered requests that a valid cell has at least
    0.01::DOUBLE AS max_failed_share,  -- of its requests
    10.0::DOUBLE AS max_late_send_ms,  -- p99 of sent − scheduled; and also more than ...
    0.05::DOUBLE AS max_late_send_share,  -- ... this share of the median E2E (closed loop) or TTFT (open loop)
    0.8::DOUBLE AS max_client_cpu_share,  -- CPU seconds of the client / duration
    0.01::DOUBLE AS max_merged_share,  -- of the cell's chunks that share a read with a later one, whose time they then carry
    0.01::DOUBLE AS max_acceptance_difference,  -- between what steps, counters and chunks say of acceptance
    0.01::DOUBLE AS max_false_alarms,  -- share of cells whose outputs would be called different by chance, all their statistics together
    -50.0::DOUBLE AS min_logprob,      -- one below counts as this much: a probability of 0 must not be all that a mean tells
    0.02::DOUBLE AS max_isl_difference,  -- between the mean prompt and the length that was asked for
    1000  AS resamples,                  -- of the bootstrap
    confidence()::DOUBLE AS confidence,  -- of every interval
    6     AS min_prompts_significant;    -- with fewer, all on one side happens by chance in more than 5 % (2 / 2^n)

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

-- -------------------------------------------------------------------------------------------------- sessions, attempts
CREATE VIEW sessions AS SELECT * FROM recorded_sessions;

CREATE TABLE cell_facts AS  -- one row a try; read once, so that one connection sees one state of a run that is being written
SELECT
    run, cell_id, attempt, session_id, invocation_id, deployment_id, pair_id, position, status, error_kind, error, started_at,
    duration_ns / 1e9 AS duration_s,
    coalesce(nullif(cell_json ->> '$.deployment.model.name', ''), cell_json ->> '$.deployment.model.path') AS model,
    cell_json ->> '$.deployment.engine.name' AS engine,
    cell_json ->> '$.deployment.engine.version' AS declared_engine_version,
    cell_json ->> '$.deployment.draft.method' AS method,
    coalesce((cell_json ->> '$.deployment.draft.k')::INT, 0) AS k,
    method || CASE WHEN k > 0 THEN ' k=' || k ELSE '' END AS method_and_k,
    method = 'synthetic' AS synthetic,  -- dice accept its tokens: its outputs are never judged
    coalesce(nullif(cell_json ->> '$.deployment.draft.name', ''), method) AS draft_name,
    CASE WHEN k > 0 AND NOT regexp_matches(draft_name, '(^|[^a-z])k=?' || k || '($|[^0-9])') THEN draft_name || ' k=' || k
         ELSE draft_name END AS draft,
    nullif(cell_json ->> '$.deployment.draft.model', '') AS draft_model,
    (cell_json ->> '$.deployment.engine.tp')::INT AS tp,
    CASE WHEN draft_model IS NULL THEN 0  -- drafts on the target's GPUs, or is looked up
         ELSE coalesce(nullif((cell_json ->> '$.deployment.draft.tp')::INT, 0), tp) END AS draft_tp,
    (cell_json ->> '$.deployment.engine.batch')::INT AS batch,
    cell_json ->> '$.deployment.engine.dtype' AS dtype,
    cell_json ->> '$.workload.name' AS workload,
    cell_json ->> '$.workload.split' AS split,
    (cell_json ->> '$.workload.isl')::INT AS isl,
    coalesce(cell_json ->> '$.workload.entropy', '') AS entropy,
    coalesce((cell_json ->> '$.workload.ignore_eos')::BOOL, false) AS ignore_eos,
    (cell_json ->> '$.sampling.temperature')::DOUBLE AS temperature,
    cell_json ->> '$.load.kind' AS load_kind,
    (cell_json ->> '$.load.concurrency')::INT AS concurrency,
    coalesce((cell_json ->> '$.load.rate')::DOUBLE, 0) AS rate,
    CASE load_kind WHEN 'closed' THEN 'concurrency ' || concurrency
         ELSE load_kind || CASE WHEN rate > 0 THEN format(' {:g}/s', rate) ELSE '' END END AS load,
    coalesce((cell_json ->> '$.repeat')::INT, 0) AS repeat,
    nullif((cell_json ->> '$.load.slo_ttft_s')::DOUBLE, 0) AS slo_ttft_s,  -- null = no limit
    nullif((cell_json ->> '$.load.slo_tpot_s')::DOUBLE, 0) AS slo_tpot_s,
    -- What cells with the same deployment differ in besides `repeat`; how patiently they were measured, and by what limits they are
    -- judged, is no part of it.
    json_merge_patch(json_object('workload', cell_json -> '$.workload', 'sampling', cell_json -> '$.sampling', 'load', cell_json -> '$.load'),
                     '{"sampling": {"scored": null},
                       "load": {"request_timeout_s": null, "cell_timeout_s": null, "slo_ttft_s": null, "slo_tpot_s": null}}')::VARCHAR AS condition,
    caches_reset, counters_before, counters_after, clock, coalesce(clock_stepped, false) AS clock_stepped, late_send_ns,
    coalesce(merged_reads, 0) AS merged_reads, loop_lag_ns_max / 1e6 AS loop_lag_ms_max, client_cpu_share, load_average, cell_json,
    row_number() OVER (PARTITION BY run, cell_id ORDER BY status = 'ok' DESC, attempt DESC) = 1 AS is_shown
FROM recorded_cells;

CREATE VIEW attempts AS  -- every try at every cell
SELECT run, cell_id, attempt, status, is_shown, error_kind, error, session_id, invocation_id, deployment_id, position, started_at,
       duration_s, engine, model, draft, workload, load, concurrency, repeat
FROM cell_facts;

CREATE VIEW shown_cells AS SELECT * FROM cell_facts WHERE is_shown;  -- one try a cell: the good one, else the latest

-- --------------------------------------------------------------------------------------------- requests, chunks, steps
CREATE VIEW requests AS  -- one row a turn of the shown try of each cell; a metric of a request that failed is null
WITH told AS (
    SELECT
        recorded.*,
        load_kind, method, slo_ttft_s, slo_tpot_s,
        CASE load_kind WHEN 'closed' THEN t_sent_ns ELSE t_sched_ns END AS t_origin_ns,  -- open loop: queueing counts
        t_sent_ns + coalesce(list_sum(chunk_gap_ns), 0)::BIGINT AS t_last_ns,
        t_sent_ns + chunk_gap_ns[1] AS t_first_ns,
        is_whole(recorded.error, chunk_gap_ns) AS is_answered,
        coalesce(list_sum(chunk_tokens), 0)::BIGINT AS n_output_tokens,
        n_output_tokens - coalesce(chunk_tokens[1], 0) AS n_later_tokens,
        counted(step_accepted, first_step_is_prefill, last_step_is_cut) AS counted_accepted,
        counted(step_drafted, first_step_is_prefill, last_step_is_cut) AS counted_drafted
    FROM recorded_requests recorded
    JOIN (SELECT run, cell_id, attempt, load_kind, method, slo_ttft_s, slo_tpot_s FROM shown_cells) USING (run, cell_id, attempt)
)
SELECT
    run, cell_id, attempt, index, turn, question_id, category, sub_category, prompt_tokens, prompt_hash, is_answered, finish_reason, error,
    n_output_tokens, n_later_tokens, output_ids, output_hash, n_thinking_tokens, output_valid, engine_al,
    CASE WHEN is_answered THEN finish_reason = 'length' END AS is_censored,  -- the limit cut it, not the model
    t_sched_ns, t_sent_ns, t_first_ns, t_last_ns, chunk_gap_ns, chunk_tokens, step_drafted, step_accepted,
    first_step_is_prefill, last_step_is_cut,
    CASE WHEN is_answered THEN (t_first_ns - t_origin_ns) / 1e6 END AS ttft_ms,
    CASE WHEN is_answered THEN (t_last_ns - t_origin_ns) / 1e6 END AS e2e_ms,
    CASE WHEN is_answered AND len(chunk_gap_ns) > 1 THEN (t_last_ns - t_first_ns) / 1e6 END AS decode_ms,
    decode_ms / nullif(n_later_tokens, 0) AS tpot_ms,
    1e3 * n_later_tokens / nullif(decode_ms, 0) AS user_tps,  -- a request with one chunk has none
    meets_limits(is_answered, ttft_ms, slo_ttft_s, tpot_ms, slo_tpot_s) AS meets_slos,
    len(chunk_gap_ns) AS n_chunks,
    len(list_filter(chunk_gap_ns[2:], lambda gap_ns: gap_ns = 0)) AS n_merged_chunks,  -- share a read with the next, and its stamp
    CASE WHEN decode_ms IS NOT NULL THEN (CASE WHEN len(step_accepted) > 0 THEN len(step_accepted) ELSE len(chunk_tokens) END) - 1 END
        AS n_later_steps,  -- the rounds within `decode_ms`: a chunk is a step where the engine does not tell steps
    CASE WHEN is_answered THEN len(counted_accepted) END AS n_steps,
    CASE WHEN is_answered THEN coalesce(list_sum(counted_accepted), 0)::BIGINT END AS n_accepted,
    CASE WHEN is_answered THEN coalesce(list_sum(counted_drafted), 0)::BIGINT END AS n_drafted,
    CASE WHEN is_answered THEN len(list_filter(counted_drafted, lambda drafted: drafted > 0)) END AS n_drafting_steps,
    CASE WHEN is_answered THEN len(step_accepted) END AS n_all_steps,
    CASE WHEN is_answered THEN coalesce(list_sum(step_accepted), 0)::BIGINT END AS n_all_accepted,
    CASE WHEN is_answered THEN len(list_filter(step_drafted, lambda drafted: drafted > 0)) END AS n_all_drafting_steps,
    coalesce(list_max(chunk_tokens), 0) AS max_chunk_tokens,
    coalesce(list_max(step_drafted), 0) AS max_drafted,
    acceptance_length(n_accepted, n_steps) AS al
FROM told;

CREATE VIEW chunks AS  -- one row a read of a stream: ITL both ways, the gap and the gap per token of the chunk
WITH opened AS (
    SELECT run, cell_id, attempt, index, turn, question_id, category, t_sent_ns,
           unnest(range(len(chunk_gap_ns))) AS chunk, unnest(chunk_gap_ns) AS gap_ns, unnest(chunk_tokens) AS tokens
    FROM requests
)
SELECT run, cell_id, attempt, index, turn, question_id, category, chunk, tokens,
       CASE WHEN chunk > 0 THEN gap_ns / 1e6 END AS itl_ms,  -- the first gap is no gap between chunks: it is from the send
       CASE WHEN chunk > 0 THEN gap_ns / 1e6 / nullif(tokens, 0) END AS itl_per_token_ms,
       gap_ns / 1e6 AS gap_ms,
       (t_sent_ns + sum(gap_ns) OVER (PARTITION BY run, cell_id, attempt, index, turn ORDER BY chunk)) / 1e6 AS t_ms  -- since the cell's start
FROM opened;

CREATE VIEW steps AS  -- one row a draft-and-verify round; only those of engines that tell them
SELECT run, cell_id, attempt, index, turn, question_id, category, step, drafted, accepted, accepted + 1 AS length,
       step = 0 AND first_step_is_prefill AS is_prefill, step = n - 1 AND last_step_is_cut AS is_cut,
       NOT is_prefill AND NOT is_cut AS is_counted
FROM (
    SELECT run, cell_id, attempt, index, turn, question_id, category, first_step_is_prefill, last_step_is_cut, len(step_accepted) AS n,
           unnest(range(len(step_accepted))) AS step, unnest(step_drafted) AS drafted, unnest(step_accepted) AS accepted
    FROM requests WHERE is_answered
);

CREATE VIEW telemetry AS
SELECT recorded.* FROM recorded_telemetry recorded JOIN (SELECT run, cell_id, attempt FROM shown_cells) USING (run, cell_id, attempt);

-- ----------------------------------------------------------------------------------------------------- acceptance (AR)
CREATE VIEW drafting_steps AS  -- how often a step of this shape occurred; the shape is all that acceptance needs
SELECT run, cell_id, category, drafted, accepted, count(*) AS n FROM steps WHERE is_counted GROUP BY ALL;

CREATE VIEW acceptance AS
-- One row a cell and position 1..k, those never reached too. ar_conditional = P(accepted at i | drafted at i, all before accepted),
-- null when never reached; ar_joint = Π_{j≤i} ar_conditional, so that 1 + Σ ar_joint = AL where every step drafts k [SPEED-Bench].
WITH from_steps AS (
    SELECT run, cell_id, position,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position - 1), 0)::BIGINT AS n_reached,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position), 0)::BIGINT AS n_accepted,
           'steps' AS source
    FROM drafting_steps
    JOIN (SELECT run, cell_id, k, max(drafted) AS max_drafted FROM drafting_steps JOIN shown_cells USING (run, cell_id)
          WHERE method <> 'none' GROUP BY ALL) USING (run, cell_id),
         LATERAL unnest(range(1, greatest(k, max_drafted) + 1)) AS positions(position)
    GROUP BY run, cell_id, position
), from_counters AS (  -- vLLM counts acceptances by position; a draft is a step with something drafted
    SELECT run, cell_id, positions.position,
           CASE positions.position WHEN 1 THEN grown(counters_before, counters_after, 'drafts')
                ELSE grown(counters_before, counters_after, 'accepted_at_' || (positions.position - 2)) END::BIGINT AS n_reached,
           grown(counters_before, counters_after, 'accepted_at_' || (positions.position - 1))::BIGINT AS n_accepted,
           'counters' AS source
    FROM shown_cells ANTI JOIN from_steps USING (run, cell_id), LATERAL unnest(range(1, k + 1)) AS positions(position)
    WHERE method <> 'none' AND n_reached IS NOT NULL AND n_accepted IS NOT NULL
), rated AS (
    SELECT *, n_accepted / nullif(n_reached, 0) AS ar_conditional FROM (FROM from_steps UNION ALL BY NAME FROM from_counters)
)
SELECT run, cell_id, position, n_reached, n_accepted, ar_conditional,
       product(ar_conditional) OVER earlier AS known,
       CASE WHEN n_reached > 0 OR known = 0 THEN known END AS ar_joint,  -- after a sure rejection 0; where nothing was drafted, unknown
       source
FROM rated WINDOW earlier AS (PARTITION BY run, cell_id ORDER BY position);

-- ------------------------------------------------------------------------------------------- metrics by cell, by category
CREATE VIEW metrics AS  -- one row a cell for `category` 'all', and one a category
WITH turns AS (
    SELECT *, unnest(['all', category]) AS part,
           acceptance_length(sum(n_accepted) OVER talk, sum(n_steps) OVER talk) AS conversation_al,
           turn = min(turn) OVER talk AS is_first_turn
    FROM requests WINDOW talk AS (PARTITION BY run, cell_id, index)
)
SELECT
    run, cell_id, part AS category,
    count(*) AS n_requests,
    count(*) FILTER (WHERE NOT is_answered) AS n_failed,
    count(*) FILTER (WHERE is_answered) AS n_answered,
    count(DISTINCT index) AS n_conversations,
    sum(n_output_tokens) FILTER (WHERE is_answered)::BIGINT AS n_output_tokens,
    avg(prompt_tokens) AS prompt_tokens_mean,
    acceptance_length(sum(n_accepted), sum(n_steps)) AS al_step_weighted,              -- over all steps, as an engine counts
    avg(conversation_al) FILTER (WHERE is_first_turn) AS al_request_mean,              -- [SPEED-Bench] Average_AL: a conversation, one voice
    acceptance_length(sum(n_all_accepted), sum(n_all_steps)) AS al_untrimmed,          -- [SPEED-Bench] as its published code takes steps
    acceptance_length(sum(n_accepted), sum(n_drafting_steps)) AS al_drafted,           -- [vLLM] leaves out steps with nothing drafted
    acceptance_length(sum(n_all_accepted), sum(n_all_drafting_steps)) AS al_drafted_untrimmed,
    avg(engine_al) AS engine_al_mean,
    sum(n_later_tokens) FILTER (WHERE is_answered) / nullif(sum(n_chunks - 1) FILTER (WHERE is_answered), 0) AS al_chunks,
    avg(is_censored::INT) AS censored_share,
    avg(output_valid::INT) AS valid_share,                                             -- of answers that were to be JSON, SQL, ...
    sum(n_accepted) / nullif(sum(n_drafted), 0) AS draft_efficiency,
    sum(decode_ms) / nullif(sum(n_later_steps), 0) AS step_ms,                         -- mean time of a round: t_ar, t_sd
    percentile(0.5, ttft_ms) AS ttft_ms_p50, percentile(0.9, ttft_ms) AS ttft_ms_p90, percentile(0.99, ttft_ms) AS ttft_ms_p99,
    percentile(0.5, tpot_ms) AS tpot_ms_p50, percentile(0.9, tpot_ms) AS tpot_ms_p90, percentile(0.99, tpot_ms) AS tpot_ms_p99,
    percentile(0.5, e2e_ms) AS e2e_ms_p50, percentile(0.9, e2e_ms) AS e2e_ms_p90, percentile(0.99, e2e_ms) AS e2e_ms_p99,
    percentile(0.5, user_tps) AS user_tps_p50,
    percentile(0.1, user_tps) AS user_tps_p10,                                                  -- the slow tail of speeds
    avg(meets_slos::INT) AS slo_attainment,                -- of all requests, the failed too; null when no limit is set
    sum(meets_slos::INT)::BIGINT AS n_within_slos,
    sum(n_all_steps)::BIGINT AS n_all_steps,
    sum(n_chunks)::BIGINT AS n_chunks,
    sum(n_chunks) FILTER (WHERE is_answered)::BIGINT AS n_answered_chunks,
    sum(n_merged_chunks)::BIGINT AS n_merged_chunks,
    max(max_chunk_tokens) AS max_chunk_tokens,
    max(max_drafted) AS max_drafted
FROM turns GROUP BY run, cell_id, part;

CREATE VIEW steady_windows AS
-- The steady window of a closed loop: from the time that `concurrency` conversations are in flight to the first time that they no
-- longer are. A conversation holds its slot from its first send to its last byte, and a free slot is taken at once while there are
-- conversations left: so the window ends with the first conversation that ends after the last one began.
WITH conversations AS (
    SELECT run, cell_id, min(t_sent_ns) AS begin_ns, max(t_last_ns) AS end_ns FROM requests GROUP BY run, cell_id, index
), bounds AS (
    SELECT run, cell_id, concurrency,
           list_sort(list(begin_ns))[concurrency] AS start_ns,
           max(begin_ns) AS last_begin_ns,
           list(end_ns) AS ends_ns
    FROM conversations JOIN shown_cells USING (run, cell_id) WHERE load_kind = 'closed' GROUP BY run, cell_id, concurrency
)
SELECT run, cell_id, start_ns, list_min(list_filter(ends_ns, lambda ns: ns > last_begin_ns)) AS stop_ns
FROM bounds WHERE start_ns < stop_ns;

CREATE VIEW steady_output AS  -- tokens that arrived in the steady window (start, stop]
WITH shares AS (
    SELECT run, cell_id, start_ns, stop_ns, n_output_tokens, t_sent_ns, t_last_ns, chunk_gap_ns, chunk_tokens, index, turn,
           t_sent_ns >= start_ns AND t_last_ns <= stop_ns AS is_inside
    FROM requests JOIN steady_windows USING (run, cell_id) WHERE is_answered
), crossing AS (  -- only requests that cross a bound are opened
    SELECT run, cell_id, start_ns, stop_ns, tokens,
           t_sent_ns + sum(gap_ns) OVER (PARTITION BY run, cell_id, index, turn ORDER BY chunk) AS t_ns
    FROM (SELECT * EXCLUDE (chunk_gap_ns, chunk_tokens), unnest(range(len(chunk_gap_ns))) AS chunk, unnest(chunk_gap_ns) AS gap_ns,
                 unnest(chunk_tokens) AS tokens FROM shares WHERE NOT is_inside)
), counted_tokens AS (
    SELECT run, cell_id, start_ns, stop_ns, n_output_tokens AS tokens FROM shares WHERE is_inside
    UNION ALL
    SELECT run, cell_id, start_ns, stop_ns, tokens FROM crossing WHERE t_ns > start_ns AND t_ns <= stop_ns
)
SELECT run, cell_id, (stop_ns - start_ns) / 1e9 AS steady_s, 1e9 * sum(tokens) / (stop_ns - start_ns) AS steady_output_tps
FROM counted_tokens GROUP BY run, cell_id, start_ns, stop_ns;

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


-- ------------------------------------------------------------------------------------------------------ cells, categories
CREATE VIEW cells AS
-- One row a cell. `al` is step-weighted: it is what E[L] of `acceptance`, the engines' counters and t_ar·AL/t_sd mean. SPEED-Bench
-- averages over requests: `al_request_mean`. `al` is over all steps, `al_drafted` over those in which something was drafted, and
-- never is one shown as the other. `acceptance_source` says where both come from: the steps that the engine told, its counters over the
-- cell, or the mean of its own summaries; '' without speculation, where AL is 1. `al_chunks` is tokens a chunk, as the client saw them.
WITH macro_mean AS (
    SELECT run, cell_id, avg(al_step_weighted) AS al_macro FROM metrics WHERE category <> 'all' GROUP BY run, cell_id  -- [AIPerf]
), session_facts AS (
    SELECT run, session_id, engine_version, simulated, json_array_length(gpus_json) AS gpus, node, git_commit,
           regexp_replace(effective_config_json ->> '$.dtype', '^torch\.', '') AS effective_dtype
    FROM sessions
), joined AS (
    SELECT facts.*, overall.* EXCLUDE (run, cell_id, category), al_macro, steady_s, steady_output_tps,
           lossless, n_compared, first_difference_min, first_difference_p50, baseline_lossless,
           CASE WHEN is_greedy THEN output_verdicts.verdict END AS identity,
           CASE WHEN NOT is_greedy THEN output_verdicts.verdict END AS distribution,
           output_verdicts.p AS output_p,
           session_facts.* EXCLUDE (run, session_id),
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
    draft, draft_model, dtype, split, entropy, ignore_eos, censored_share, valid_share, load, load_kind, rate, attempt, position, started_at, error_kind, error,
    al_step_weighted, coalesce(al_request_mean, engine_al_mean) AS al_request_mean, al_macro,
    coalesce(al_drafted, al_drafted_counters) AS al_drafted, al_counters, al_drafted_counters, al_chunks, draft_efficiency,
    n_output_tokens, prompt_tokens_mean, steady_output_tps, steady_s, output_tps / nullif(gpus, 0) AS output_tps_per_gpu,
    slo_ttft_s, slo_tpot_s, slo_attainment, goodput_rps,
    e2e_ms_p50, e2e_ms_p90, e2e_ms_p99, user_tps_p10, step_ms,
    n_compared, baseline_lossless, identity, first_difference_min, first_difference_p50, distribution, output_p, synthetic, late_send_ms_p99, merged_reads, merged_share, loop_lag_ms_max,
    client_cpu_share, load_average, coalesce(simulated, false) AS simulated, engine_version, node, git_commit,
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
       random.method, random.draft, random.isl, random.load, random.repeat,
       random.al, real.al AS real_al, CASE WHEN random.method <> 'none' THEN random.al / real.al - 1 END AS al_inflation,
       random.user_tps_p50 AS user_tps, real.user_tps_p50 AS real_user_tps, random.user_tps_p50 / real.user_tps_p50 - 1 AS user_tps_inflation,
       random.censored_share, real.censored_share AS real_censored_share, random.valid AND real.valid AS valid
FROM kinds random JOIN kinds real
  ON real.run = random.run AND real.deployment_id = random.deployment_id AND real.same_condition = random.same_condition
 AND real.repeat = random.repeat AND real.workload <> 'random_tokens'
WHERE random.workload = 'random_tokens';

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

CREATE VIEW answers AS  -- one row a prompt: a prompt that was sent more than once speaks once
SELECT run, cell_id, question_id, turn, any_value(category) AS category, avg(user_tps) AS user_tps, avg(tpot_ms) AS tpot_ms,
       avg(ttft_ms) AS ttft_ms, avg(e2e_ms) AS e2e_ms, sum(n_output_tokens) AS tokens, sum(e2e_ms) AS busy_ms
FROM requests WHERE is_answered GROUP BY run, cell_id, question_id, turn;

CREATE VIEW answered_twice AS
-- Prompts that both cells of a pair answered. A `gain` is of two numbers, `top` and `bottom`, so that top / bottom > 1 always means
-- faster with speculation. `level` says what is compared: one cell, or one draft over all repeats (a prompt's mean over them first:
-- repeats of a prompt are no new prompts).
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
FROM prompts GROUP BY ALL;

-- The statistic of two lists: a ratio of medians, or of ratios of sums where there are weights.
CREATE MACRO ratio_of(tops, bottoms, top_weights, bottom_weights) AS CASE
    WHEN top_weights[1] IS NULL THEN list_aggregate(tops, 'median') / nullif(list_aggregate(bottoms, 'median'), 0)
    ELSE (list_sum(tops) / nullif(list_sum(top_weights), 0)) / nullif(list_sum(bottoms) / nullif(list_sum(bottom_weights), 0), 0) END;

CREATE VIEW gains AS  -- the lists that a ratio is made of, in one order, so that a resample takes the same prompts from both
SELECT level, run, subject, baseline, condition, category, gain.metric,
       list(gain.top ORDER BY question_id, turn) AS tops, list(gain.bottom ORDER BY question_id, turn) AS bottoms,
       list(gain.top_weight ORDER BY question_id, turn) AS top_weights, list(gain.bottom_weight ORDER BY question_id, turn) AS bottom_weights
FROM (
    SELECT level, run, subject, baseline, condition, category, question_id, turn, unnest([
        {metric: 'user_tps', top: user_tps, bottom: base_user_tps, top_weight: NULL::DOUBLE, bottom_weight: NULL::DOUBLE},
        {metric: 'tpot', top: base_tpot_ms, bottom: tpot_ms, top_weight: NULL, bottom_weight: NULL},
        {metric: 'ttft', top: base_ttft_ms, bottom: ttft_ms, top_weight: NULL, bottom_weight: NULL},
        {metric: 'e2e', top: base_e2e_ms, bottom: e2e_ms, top_weight: NULL, bottom_weight: NULL},
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
FROM throughputs GROUP BY ALL;

CREATE VIEW observed_gains AS
-- The measured ratios. The whole cell's output TPS cannot be taken apart by prompt: its interval is that of the throughput by prompt,
-- moved (`scale`) onto the ratio that was measured.
SELECT level, run, subject, baseline, condition, category, metric, tops, bottoms, top_weights, bottom_weights, len(tops) AS n_prompts,
       ratio_of(tops, bottoms, top_weights, bottom_weights) AS ratio_by_prompt,
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
WITH resampled AS (
    SELECT observed_gains.*, list_transform(uniforms[1:n_prompts], lambda u: 1 + floor(u * n_prompts)::BIGINT) AS drawn
    FROM observed_gains, numbers
), ratios AS (
    SELECT level, run, subject, baseline, condition, category, metric, ratio, n_prompts,
           scale * ratio_of(list_select(tops, drawn), list_select(bottoms, drawn),
                            list_select(top_weights, drawn), list_select(bottom_weights, drawn)) AS resampled_ratio
    FROM resampled
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

CREATE VIEW draft_speedups AS
-- One row a draft, condition, metric and category: all repeats of a pair together. `ratio_min` and `ratio_max` are those of the single
-- repeats: what differs from one session to the next is in no interval that resamples prompts. `valid` = all of its cells are.
WITH repeats AS (
    SELECT pairs.run, pairs.deployment_id AS subject, pairs.baseline_deployment_id AS baseline, pairs.condition, category, metric,
           count(*) AS n_repeats, min(ratio) AS ratio_min, max(ratio) AS ratio_max
    FROM observed_gains JOIN pairs ON pairs.run = observed_gains.run AND cell_id = subject WHERE level = 'cell' GROUP BY ALL
), labels AS (
    SELECT run, deployment_id AS subject, condition, any_value(engine) AS engine, any_value(model) AS model, any_value(method) AS method,
           any_value(k) AS k, any_value(draft) AS draft, any_value(tp) AS tp, any_value(batch) AS batch, any_value(workload) AS workload,
           any_value(isl) AS isl, any_value(entropy) AS entropy, any_value(load) AS load, any_value(load_kind) AS load_kind, any_value(concurrency) AS concurrency,
           any_value(rate) AS rate, any_value(temperature) AS temperature, any_value(dtype) AS dtype, any_value(split) AS split
    FROM shown_cells GROUP BY run, deployment_id, condition
)
SELECT run, engine, model, method, k, draft, tp, batch, workload, isl, concurrency, temperature, metric, category, ratio, ci_low, ci_high,
       significant, verdict, n_prompts, n_repeats, ratio_min, ratio_max, load, load_kind, rate, dtype, split, entropy, subject AS deployment_id, baseline AS baseline_deployment_id, condition, valid
FROM (FROM comparisons WHERE level = 'draft')
JOIN repeats USING (run, subject, baseline, condition, category, metric)
JOIN labels USING (run, subject, condition)
JOIN (SELECT run, deployment_id AS subject, condition, bool_and(valid) AS valid FROM judged_pairs GROUP BY ALL)
    USING (run, subject, condition);

CREATE VIEW projections AS
-- The speed-up that acceptance and step times promise: S = t_ar · AL / t_sd [SPEED-Bench, App. H], beside the measured one.
SELECT pairs.run, pairs.cell_id, baseline_cell_id, fast.category, base.step_ms AS t_ar_ms, fast.step_ms AS t_sd_ms,
       fast.al_step_weighted AS al, t_ar_ms * al / t_sd_ms AS projected
FROM pairs JOIN metrics fast USING (run, cell_id)
JOIN metrics base ON base.run = pairs.run AND base.cell_id = baseline_cell_id AND base.category = fast.category;

-- --------------------------------------------------------------------------------------------------------------- memory
CREATE VIEW memory AS
-- What each engine start needed, and a draft's cost: the difference to the start without a draft that came nearest before or after it on
-- the same node, of a deployment that is the same otherwise. `weights_bytes` are the target's where the engine tells the draft's apart, and
-- both together where not; then the draft's are the difference. Null = the engine does not tell, or there is nothing to compare with.
WITH started AS (
    SELECT run, session_id, node, deployment_id, started_at, deployment_json ->> '$.engine.name' AS engine,
           coalesce(nullif(deployment_json ->> '$.model.name', ''), deployment_json ->> '$.model.path') AS model,
           deployment_json ->> '$.draft.method' AS method,
           coalesce(nullif(deployment_json ->> '$.draft.name', ''), method) AS draft,
           coalesce((deployment_json ->> '$.draft.k')::INT, 0) AS k,
           json_merge_patch(deployment_json, '{"draft": null}')::VARCHAR AS undrafted,
           kv_capacity_tokens, weights_bytes, draft_weights_bytes, peak_memory_bytes
    FROM sessions WHERE status = 'ok'
), beside AS (
    SELECT fast.run, fast.session_id,
           arg_min(base, abs(epoch(fast.started_at::TIMESTAMPTZ) - epoch(base.started_at::TIMESTAMPTZ))) AS base
    FROM started fast JOIN started base USING (run, node, undrafted) WHERE fast.method <> 'none' AND base.method = 'none' GROUP BY ALL
)
SELECT run, session_id, deployment_id, node, engine, model, draft, method, k, base.session_id AS baseline_session_id,
       kv_capacity_tokens, base.kv_capacity_tokens - kv_capacity_tokens AS kv_lost_tokens,
       kv_lost_tokens / nullif(base.kv_capacity_tokens, 0) AS kv_lost_share,
       weights_bytes, coalesce(draft_weights_bytes, started.weights_bytes - base.weights_bytes) AS draft_weights_bytes,
       peak_memory_bytes, started.peak_memory_bytes - base.peak_memory_bytes AS draft_peak_bytes
FROM started LEFT JOIN beside USING (run, session_id);

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
