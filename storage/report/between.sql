-- Owns which measurements of two runs belong together, for `between.py`. Does not own their comparison, which is that of `views/comparisons.sql`:
-- the views `pairs` and `answers` get other rows, a cell of the later run with its like of the run before in the place of its baseline.

CREATE TABLE sides AS
SELECT run = getvariable('after') AS is_after, run, cell_id, deployment_id, engine, model, dtype, tp, batch, condition, repeat, workload, isl, load, temperature,
       draft, method, status, valid, reasons, al, duration_s, engine_version
FROM cells;

CREATE TABLE linked AS  -- alike besides the draft; the version of the engine and the revision of the model may differ
WITH named AS (  -- the draft of the same name
    SELECT one, other FROM sides one JOIN sides other USING (engine, model, dtype, tp, batch, condition, repeat, draft, method)
    WHERE one.is_after AND NOT other.is_after
), taken AS (
    SELECT one.run AS run, one.cell_id AS cell_id FROM named UNION ALL SELECT other.run, other.cell_id FROM named
), lonely AS (  -- of the others, those that are the only one on their side: a new draft beside the old one
    SELECT * FROM sides ANTI JOIN taken USING (run, cell_id) WHERE method <> 'none'
    QUALIFY count(*) OVER (PARTITION BY run, engine, model, dtype, tp, batch, condition, repeat) = 1
)
SELECT one, other FROM named
UNION ALL
SELECT one, other FROM lonely one JOIN lonely other USING (engine, model, dtype, tp, batch, condition, repeat) WHERE one.is_after AND NOT other.is_after;

CREATE TABLE pairs_between AS
SELECT 'between' AS run, one.run || '/' || one.cell_id AS cell_id, other.run || '/' || other.cell_id AS baseline_cell_id,
       one.deployment_id AS deployment_id, other.deployment_id AS baseline_deployment_id, one.condition AS condition,
       one.duration_s AS duration_s, other.duration_s AS baseline_duration_s
FROM linked WHERE one.status = 'ok' AND other.status = 'ok';

CREATE TABLE judged_between AS
SELECT 'between' AS run, one.run || '/' || one.cell_id AS cell_id, one.deployment_id AS deployment_id, one.condition AS condition,
       one.valid AND other.valid AS valid, one.al AS al, other.al AS al_before, one AS now, other AS before
FROM linked WHERE one.status = 'ok' AND other.status = 'ok';

CREATE TABLE answers_between AS SELECT * REPLACE ('between' AS run, run || '/' || cell_id AS cell_id) FROM answers;

DROP VIEW pairs;
ALTER TABLE pairs_between RENAME TO pairs;
DROP VIEW judged_pairs;
ALTER TABLE judged_between RENAME TO judged_pairs;
DROP VIEW answers;
ALTER TABLE answers_between RENAME TO answers;

CREATE TABLE changes AS
-- One row a draft, load and metric that both runs have: `ratio` > 1 is better after. A change counts when its interval excludes 1, every repeat
-- agrees and its cells are valid; repeats that are not are left out where others are.
WITH labels AS (
    SELECT deployment_id, condition, avg(al) AS al, avg(al_before) AS al_before, any_value(now) AS now, any_value(before) AS before
    FROM judged_pairs SEMI JOIN draft_pairs USING (run, cell_id) GROUP BY ALL
)
SELECT metric, ratio, ci_low, ci_high, verdict, n_prompts, n_repeats, n_left_out, ratio_min, ratio_max, valid, al, al_before, now, before,
       valid AND verdict = 'slower' AND ratio_max < 1 AS is_regression, valid AND verdict = 'faster' AND ratio_min > 1 AS is_gain
FROM draft_comparisons JOIN labels USING (deployment_id, condition)
WHERE category = 'all' AND metric <> 'tpot'
UNION ALL BY NAME  -- what was valid before and is no more
SELECT '' AS metric, one AS now, other AS before, true AS is_regression, false AS is_gain FROM linked WHERE other.valid AND NOT one.valid;
