-- Owns what cells are called, and what tells those apart that would be called the same. Does not own what was measured.

CREATE TABLE named_cells AS  -- one row a try; read once, so that one connection sees one state of a run that is being written
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
    nullif(cell_json ->> '$.deployment.draft.model', '') AS draft_model,
    (cell_json ->> '$.deployment.engine.tp')::INT AS tp,
    nullif((cell_json ->> '$.deployment.draft.acceptance_length')::DOUBLE, 0) AS asked_al,  -- of synthetic acceptance
    concat_ws(' ', draft_name, CASE WHEN k > 0 AND NOT regexp_matches(draft_name, '(^|[^a-z])k=?' || k || '($|[^0-9])') THEN 'k=' || k END,
              CASE WHEN asked_al IS NOT NULL THEN format('AL={:g}', asked_al) END,
              CASE WHEN nullif((cell_json ->> '$.deployment.draft.tp')::INT, 0) <> tp THEN 'tp=' || (cell_json ->> '$.deployment.draft.tp') END) AS draft,
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
    CASE load_kind WHEN 'closed' THEN (cell_json ->> '$.load.concurrency')::INT END AS concurrency,  -- means nothing where requests arrive by themselves
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
    coalesce(merged_reads, 0) AS merged_reads, loop_lag_ns_max / 1e6 AS loop_lag_ms_max, client_cpu_share, load_average, cell_json
FROM recorded_cells;

CREATE TABLE variants AS
-- Beside cells that have every name in common: the settings in which they differ within their run, as overrides name them. `of_draft` are told with the
-- name of the draft, `of_load` with that of the load; `variant` is of all others, so that it is the same for a speculative cell and its baseline, and
-- `start_variant` of those of the engine's start, the draft's too. What is no part of a condition, and a field that an older row does not have, tell nothing apart.
WITH outside_ids AS (  -- they may change from one start of the command to the next, and the cell stays the same
    SELECT unnest(['model.name', 'draft.name', 'engine.python', 'engine.runtime_env', 'engine.cpus', 'engine.url', 'engine.served_model', 'engine.api_key_env',
                   'engine.start_timeout_s', 'sampling.scored', 'load.request_timeout_s', 'load.cell_timeout_s', 'load.slo_ttft_s', 'load.slo_tpot_s']) AS setting
), sections AS MATERIALIZED (  -- of many cells the same
    SELECT DISTINCT run, cell_id, section, (cell_json -> section)::VARCHAR AS told FROM named_cells, (SELECT unnest(['deployment', 'workload', 'sampling', 'load']) AS section)
), leaves AS MATERIALIZED (
    SELECT run, section, told, CASE section WHEN 'deployment' THEN '' ELSE section || '.' END || substr(fullkey, 3) AS setting, coalesce(value ->> '$', 'null') AS value
    FROM (SELECT DISTINCT run, section, told FROM sections), json_tree(told) WHERE type <> 'OBJECT' AND fullkey NOT LIKE '%[%'
), varying AS (  -- `is_free`: of a mapping that holds what a user writes, as `engine.args`
    SELECT run, setting, len(string_split(setting, '.')) > 2 AS is_free, CASE WHEN split_part(setting, '.', 1) IN ('draft', 'load') THEN split_part(setting, '.', 1) ELSE '' END AS part
    FROM leaves ANTI JOIN outside_ids USING (setting) WHERE NOT starts_with(setting, 'engine.runtime_env.')
    GROUP BY ALL HAVING count(DISTINCT value) > 1 OR is_free
), called AS (
    SELECT *, count(*) OVER (PARTITION BY run, part, names) AS n_alike
    FROM (SELECT DISTINCT run, cell_id, unnest([{part: 'draft', names: concat_ws('|', engine, model, draft)}, {part: 'load', names: load},
              {part: '', names: concat_ws('|', engine, model, tp, batch, dtype, workload, split, isl, entropy, temperature)}], recursive := true) FROM named_cells)
), told AS (
    SELECT run, cell_id, part, setting || '=' || CASE WHEN len(value) > 40 THEN '…' || right(value, 39) ELSE value END AS words
    FROM (SELECT * FROM leaves JOIN varying USING (run, setting)) JOIN sections USING (run, section, told) JOIN called USING (run, cell_id, part)
    WINDOW alike AS (PARTITION BY run, part, names, setting)
    QUALIFY count(DISTINCT value) OVER alike > 1 OR (is_free AND count(*) OVER alike < n_alike)
)
SELECT run, cell_id, string_agg(substr(words, 7), ' ' ORDER BY words) FILTER (part = 'draft') AS of_draft,
       string_agg(substr(words, 6), ', ' ORDER BY words) FILTER (part = 'load') AS of_load,
       coalesce(string_agg(words, ', ' ORDER BY words) FILTER (part = ''), '') AS variant,
       coalesce(string_agg(words, ', ' ORDER BY words) FILTER (regexp_matches(words, '^(draft|engine|model)\.')), '') AS start_variant
FROM told GROUP BY run, cell_id;

CREATE TABLE cell_facts AS
SELECT named_cells.* REPLACE (concat_ws(' ', draft, of_draft) AS draft, concat_ws(', ', load, of_load) AS load),
       coalesce(variant, '') AS variant, coalesce(start_variant, '') AS start_variant,
       row_number() OVER (PARTITION BY run, cell_id ORDER BY status = 'ok' DESC, attempt DESC) = 1 AS is_shown
FROM named_cells LEFT JOIN variants USING (run, cell_id);

CREATE VIEW attempts AS  -- every try at every cell
SELECT run, cell_id, attempt, status, is_shown, error_kind, error, session_id, invocation_id, deployment_id, position, started_at,
       duration_s, engine, model, draft, workload, load, concurrency, repeat, variant
FROM cell_facts;

CREATE VIEW shown_cells AS SELECT * FROM cell_facts WHERE is_shown;  -- one try a cell: the good one, else the latest
