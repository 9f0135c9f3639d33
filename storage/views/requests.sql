-- Owns what was recorded as rows that are asked: sessions, tries, requests, chunks, steps, telemetry; latencies of one request.
-- Does not own anything over more than one request.

-- -------------------------------------------------------------------------------------------------- sessions, attempts
CREATE VIEW sessions AS SELECT * FROM recorded_sessions;

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
