-- Owns what a run is as a whole: what was asked for, how far it is, what it took, and with which versions. Does not own its results.

CREATE VIEW runs AS
-- One row a run. `n_planned` is how many cells the last command asked for, null for runs of before that was recorded; a run goes on, or was
-- broken off, while fewer are measured.
WITH told_cells AS (
    SELECT run, count(*) AS n_cells, count(*) FILTER (status = 'ok') AS n_ok, count(*) FILTER (valid) AS n_valid,
           count(*) FILTER (status = 'failed') AS n_failed, count(*) FILTER (status = 'ok' AND NOT valid) AS n_invalid,
           count(*) FILTER (status = 'not_measured') AS n_not_measured, list_sort(list(DISTINCT engine)) AS engines, list_sort(list(DISTINCT model)) AS models,
           list_sort(list(DISTINCT method) FILTER (method <> 'none')) AS methods, list_sort(list(DISTINCT workload)) AS workloads, sum(duration_s) AS measured_s,
           bool_or(simulated) AS simulated, max(started_at) AS last_cell_at, sum(n_requests)::BIGINT AS n_requests
    FROM cells GROUP BY run
), told_sessions AS (
    SELECT run, count(*) AS n_sessions, count(*) FILTER (status <> 'ok') AS n_failed_sessions, sum(ready_s) AS starting_s, sum(ended_s) AS session_s,
           sum(ended_s * json_array_length(gpus_json)) / 3600 AS gpu_hours, list_sort(list(DISTINCT node) FILTER (node <> '')) AS nodes,
           list_sort(list_distinct(flatten(list(gpus_json ->> '$[*].name')))) AS gpus, min(started_at) AS first_session_at
    FROM sessions GROUP BY run
), told_searches AS (
    SELECT run, any_value(goal) AS goal FROM decisions WHERE is_current GROUP BY run
), left_out AS (
    SELECT run, count(*) AS n_not_searched FROM not_searched GROUP BY run
)
SELECT run, folder, command, started_at, git_commit, git_dirty, n_planned, coalesce(n_cells, 0) AS n_cells, coalesce(n_ok, 0) AS n_ok,
       coalesce(n_valid, 0) AS n_valid, coalesce(n_failed, 0) AS n_failed, coalesce(n_invalid, 0) AS n_invalid,
       coalesce(n_not_searched, 0) AS n_not_searched, coalesce(goal, '') AS search_goal,
       greatest(coalesce(n_planned, n_cells, 0) - coalesce(n_cells, 0) - coalesce(n_not_searched, 0), 0) + coalesce(n_not_measured, 0) AS n_missing,
       n_missing = 0 AND n_cells > 0 AS is_whole,
       CASE WHEN is_whole AND goal IS NOT NULL THEN n_ok || ' of ' || n_planned || ' cells measured, ' || coalesce(n_not_searched, 0) || ' not searched'
            WHEN is_whole THEN n_ok || ' of ' || n_cells || ' cells measured'
            ELSE 'so far: ' || coalesce(n_cells - n_not_measured, 0) || ' of ' || greatest(n_planned, n_cells, 0) || ' cells' END AS progress,
       coalesce(n_sessions, 0) AS n_sessions, coalesce(n_failed_sessions, 0) AS n_failed_sessions, n_requests, engines, models, methods, workloads,
       nodes, gpus, measured_s, starting_s, session_s, gpu_hours, gpu_hour_price, gpu_hours * gpu_hour_price AS money,
       coalesce(simulated, false) AS simulated, first_session_at, last_cell_at
FROM recorded_runs LEFT JOIN told_cells USING (run) LEFT JOIN told_sessions USING (run) LEFT JOIN told_searches USING (run) LEFT JOIN left_out USING (run);

CREATE VIEW versions AS
-- One row an engine start and thing with a version: 'engine', 'specsweep' (the commit), 'python', a library, 'gpu0 driver', ...
-- `n_versions` of that thing in all runs together: more than one is worth a look before comparing.
WITH told AS (
    SELECT run, session_id, node, concat_ws(' ', 'engine', deployment_json ->> '$.engine.name') AS thing, engine_version AS version FROM sessions WHERE engine_version <> ''
    UNION ALL
    SELECT run, session_id, node, 'specsweep', left(git_commit, 12) || CASE WHEN git_dirty THEN ' with changes' ELSE '' END FROM sessions WHERE git_commit <> ''
    UNION ALL
    SELECT run, session_id, node, key, versions_json ->> ('$."' || key || '"')
    FROM (SELECT run, session_id, node, versions_json, unnest(json_keys(versions_json)) AS key FROM sessions WHERE versions_json IS NOT NULL)
    UNION ALL
    SELECT run, session_id, node, 'gpu driver', driver FROM (SELECT run, session_id, node, unnest(gpus_json ->> '$[*].driver') AS driver FROM sessions)
    WHERE driver IS NOT NULL GROUP BY ALL
)
SELECT run, session_id, node, thing, version, count(DISTINCT version) OVER (PARTITION BY thing) AS n_versions FROM told;
