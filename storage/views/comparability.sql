-- Owns what differs between cells that are set beside each other, besides what was meant to differ. Does not own the comparisons.

CREATE VIEW comparability AS
-- One row a difference between a measured cell and what it is held against (`link`): its paired 'baseline'; the first 'repeat' of the same
-- measurement; the same measurement in an earlier 'run' (same model, engine, draft, shape and condition, whatever the versions). `is_grave`: their numbers may
-- not be compared without saying so. Model, prompts' recipe, sampling and load never differ within a link: they are part of what is linked; whether
-- the prompts came out the same is looked at. No row = nothing differs.
WITH facts AS MATERIALIZED (
    SELECT run, cell_id, deployment_id, pair_id, condition, repeat, method, engine, model, draft, tp, batch, load, variant, started_at, clock, user_tps,
           coalesce(array_to_string(list_sort(gpus_json ->> '$[*].name'), ', '), '') AS gpus, coalesce(gpus_json ->> '$[0].driver', '') AS driver, valid,
           coalesce(host_json ->> '$.cpu', '') AS cpu, engine_version, node, simulated, coalesce(effective_config_json ->> '$.dtype', '') AS dtype,
           left(coalesce(git_commit, ''), 12) AS commit, prompts, try_cast(started_at AS TIMESTAMPTZ) AS stamp
    FROM (SELECT * FROM shown_cells WHERE status = 'ok')
    LEFT JOIN (SELECT run, session_id, gpus_json, host_json, engine_version, node, simulated, effective_config_json, git_commit FROM sessions) USING (run, session_id)
    LEFT JOIN (SELECT run, cell_id, attempt, list(DISTINCT question_id || ' ' || prompt_hash) FILTER (turn = 0) AS prompts FROM recorded_requests GROUP BY ALL)
        USING (run, cell_id, attempt)
    LEFT JOIN (SELECT run, cell_id, valid, user_tps_p50 AS user_tps FROM cells) USING (run, cell_id)
), linked AS (
    SELECT 'baseline' AS link, one, other FROM facts one JOIN facts other ON other.run = one.run AND other.pair_id = one.pair_id AND other.method = 'none'
    WHERE one.method <> 'none'
    UNION ALL
    SELECT 'repeat', one, arg_min(other, other.repeat) FROM facts one
    JOIN facts other ON other.run = one.run AND other.deployment_id = one.deployment_id AND other.condition = one.condition AND other.repeat < one.repeat
    GROUP BY one
    UNION ALL
    SELECT 'run', one, arg_min(other, {is_another: other.variant <> one.variant, stamp: other.stamp}) FROM facts one
    JOIN facts other ON other.run <> one.run AND other.condition = one.condition AND other.repeat = one.repeat AND other.model = one.model AND other.engine = one.engine
     AND other.draft = one.draft AND other.tp = one.tp AND other.batch = one.batch AND (other.stamp, other.run) < (one.stamp, one.run)
    GROUP BY one
), measured AS (
    SELECT *, abs(epoch(one.stamp) - epoch(other.stamp)) / 3600 AS hours_apart,
           len(list_intersect(one.prompts, other.prompts)) / nullif(greatest(len(one.prompts), len(other.prompts)), 0) AS same_prompts,
           abs(one.user_tps / other.user_tps - 1) AS drift
    FROM linked
), told AS (
    SELECT link, one, other, unnest(list_filter([
        {difference: 'gpu', own: one.gpus, others: other.gpus, is_grave: true, is_there: one.gpus <> other.gpus},
        {difference: 'cpu', own: one.cpu, others: other.cpu, is_grave: true, is_there: one.cpu <> other.cpu},
        {difference: 'engine_version', own: one.engine_version, others: other.engine_version, is_grave: true, is_there: one.engine_version <> other.engine_version},
        {difference: 'precision', own: one.dtype, others: other.dtype, is_grave: true, is_there: one.dtype <> other.dtype},
        {difference: 'prompts', own: format('{:.0f} % the same', 100 * same_prompts), others: '100 %', is_grave: true, is_there: same_prompts < 1},
        {difference: 'clock', own: one.clock, others: other.clock, is_grave: true, is_there: one.clock <> other.clock},
        {difference: 'simulated', own: one.simulated::VARCHAR, others: other.simulated::VARCHAR, is_grave: true, is_there: one.simulated <> other.simulated},
        {difference: 'driver', own: one.driver, others: other.driver, is_grave: false, is_there: one.driver <> other.driver},
        {difference: 'node', own: one.node, others: other.node, is_grave: false, is_there: one.node <> other.node},
        {difference: 'commit', own: one.commit, others: other.commit, is_grave: false, is_there: one.commit <> other.commit},
        {difference: 'time', own: one.started_at, others: other.started_at, is_grave: false, is_there: link <> 'run' AND hours_apart > max_hours_apart},
        {difference: 'drift', own: format('{:.1f} tokens/s', one.user_tps), others: format('{:.1f} tokens/s', other.user_tps), is_grave: false,
         is_there: link = 'repeat' AND drift > max_repeat_drift AND one.valid AND other.valid}  -- others are in no mean
    ], lambda fact: fact.is_there)) AS fact, max_hours_apart, max_repeat_drift
    FROM measured, thresholds
)
SELECT one.run AS run, one.cell_id AS cell_id, link, other.run AS other_run, other.cell_id AS other_cell_id, one.engine AS engine, one.model AS model,
       one.draft AS draft, one.load AS load, one.repeat AS repeat, fact.difference AS difference, fact.own AS own, fact.others AS others, fact.is_grave AS is_grave
FROM told;

CREATE VIEW warnings AS  -- `comparability` in words: one row a run, link and difference, over all the cells that have it; the grave ones first
SELECT run, link, other_run, difference, is_grave, count(*) AS n_cells,
       CASE link WHEN 'baseline' THEN format(CASE n_cells WHEN 1 THEN '{} cell and its baseline' ELSE '{} cells and their baselines' END, n_cells) WHEN 'repeat' THEN format(CASE n_cells WHEN 1 THEN '{} repeat and the first one' ELSE '{} repeats and the first one' END, n_cells)
                 ELSE format(CASE n_cells WHEN 1 THEN '{} cell and the same one of {}' ELSE '{} cells and the same ones of {}' END, n_cells, other_run) END
       || CASE difference WHEN 'time' THEN format(' were measured more than {:g} hours apart', max_hours_apart)
               WHEN 'drift' THEN format(' differ by more than {:g} % in user TPS: their mean hides a drift', 100 * max_repeat_drift)
               WHEN 'prompts' THEN ' did not get the same prompts'
               ELSE ' differ in ' || replace(difference, '_', ' ') || ': ' || string_agg(DISTINCT coalesce(nullif(own, ''), 'none'), ' or ')
                    || ' against ' || string_agg(DISTINCT coalesce(nullif(others, ''), 'none'), ' or ') END AS sentence
FROM comparability, thresholds GROUP BY run, link, other_run, difference, is_grave, max_hours_apart, max_repeat_drift
UNION ALL
SELECT one.run, 'run', other.run, 'limits', true, 0, format('{} and {} ask for different thresholds: both are judged by the usual ones', one.run, other.run)
FROM recorded_runs one JOIN recorded_runs other ON other.limits <> one.limits AND other.run < one.run
ORDER BY is_grave DESC, run, link, difference;
