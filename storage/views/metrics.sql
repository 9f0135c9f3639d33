-- Owns what is measured of many requests: one row a cell or category, and the steady window. Does not own verdicts.

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
    sum(n_steps)::BIGINT AS n_steps,
    sum(n_drafting_steps)::BIGINT AS n_drafting_steps,
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
