-- Owns what a draft costs in memory. Does not own what is recorded of it.

-- --------------------------------------------------------------------------------------------------------------- memory
CREATE VIEW memory AS
-- What each engine start needed, and a draft's cost: the difference to the start without a draft, of a deployment that is the same
-- otherwise, that came nearest before or after it on the same node; where that had none, on a node with the same GPUs, or the same CPU and memory.
-- `variant` tells apart starts that have all names in common. `weights_bytes` are the target's where the engine tells the draft's apart, and
-- both together where not; then the draft's are the difference. Null = the engine does not tell, or there is nothing to compare with.
-- `requests_fit`: how many requests of the mean length that was validly measured with this deployment's shape (`context_tokens_mean`, prompt and output
-- together, over `n_requests`) the KV cache holds at once; `requests_lost` is what the draft takes of that.
WITH started AS (
    SELECT run, session_id, node, deployment_id, started_at, deployment_json ->> '$.engine.name' AS engine,
           coalesce(nullif(deployment_json ->> '$.model.name', ''), deployment_json ->> '$.model.path') AS model,
           deployment_json ->> '$.draft.method' AS method,
           coalesce(nullif(deployment_json ->> '$.draft.name', ''), method) AS draft,
           coalesce((deployment_json ->> '$.draft.k')::INT, 0) AS k,
           json_merge_patch(deployment_json, '{"draft": null}')::VARCHAR AS undrafted,
           coalesce(nullif(array_to_string(list_sort(gpus_json ->> '$[*].name'), ', '), ''), concat(host_json ->> '$.cpu', host_json ->> '$.memory_bytes'), '') AS kind,
           kv_capacity_tokens, weights_bytes, draft_weights_bytes, peak_memory_bytes
    FROM sessions WHERE status = 'ok'
), beside AS (
    SELECT fast.run, fast.session_id,
           arg_min(base, {is_elsewhere: base.node <> fast.node, s: abs(epoch(fast.started_at::TIMESTAMPTZ) - epoch(base.started_at::TIMESTAMPTZ))}) AS base
    FROM started fast JOIN started base ON base.run = fast.run AND base.undrafted = fast.undrafted AND (base.node = fast.node OR base.kind = fast.kind AND base.kind <> '')
    WHERE fast.method <> 'none' AND base.method = 'none' GROUP BY ALL
), told AS (
    SELECT run, deployment_id, any_value(start_variant) AS variant FROM cell_facts GROUP BY ALL
), contexts AS (
    SELECT run, undrafted, avg(prompt_tokens + n_output_tokens) AS context_tokens_mean, count(*) AS n_requests
    FROM requests JOIN (SELECT run, cell_id, session_id FROM cells WHERE valid) USING (run, cell_id) JOIN (SELECT run, session_id, undrafted FROM started) USING (run, session_id)
    WHERE is_answered GROUP BY ALL
)
SELECT run, session_id, deployment_id, node, engine, model, draft, method, k, coalesce(variant, '') AS variant, base.session_id AS baseline_session_id,
       kv_capacity_tokens, base.kv_capacity_tokens - kv_capacity_tokens AS kv_lost_tokens,
       kv_lost_tokens / nullif(base.kv_capacity_tokens, 0) AS kv_lost_share,
       weights_bytes, coalesce(draft_weights_bytes, started.weights_bytes - base.weights_bytes) AS draft_weights_bytes,
       peak_memory_bytes, started.peak_memory_bytes - base.peak_memory_bytes AS draft_peak_bytes,
       context_tokens_mean, n_requests, floor(kv_capacity_tokens / context_tokens_mean)::BIGINT AS requests_fit,
       floor(base.kv_capacity_tokens / context_tokens_mean)::BIGINT - requests_fit AS requests_lost
FROM started LEFT JOIN beside USING (run, session_id) LEFT JOIN told USING (run, deployment_id) LEFT JOIN contexts USING (run, undrafted);
