-- Owns which measurements of two runs belong together, for `between.py`. Does not own their comparison, which is that of `views/comparisons.sql`:
-- the views `pairs` and `answers` get other rows, a cell of the later run with its like of the run before in the place of its baseline.

CREATE TABLE sides AS  -- `settings`: those of engine and draft, but for what may differ between runs of one measurement; `sources`: what they measured
SELECT run = getvariable('after') AS is_after, run, cell_id, deployment_id, engine, model, dtype, tp, batch, condition, repeat, workload, isl, load, temperature,
       variant, draft, method, status, valid, reasons, al, duration_s, engine_version,
       (json_merge_patch(cell_json -> '$.deployment.engine', '{"version": null, "python": null, "runtime_env": null, "cpus": null, "url": null, "served_model": null, "api_key_env": null, "start_timeout_s": null}')
        || (cell_json -> '$.deployment.draft'))::VARCHAR AS settings,
       [cell_json ->> '$.deployment.engine.version', cell_json ->> '$.deployment.model.path', cell_json ->> '$.deployment.model.revision'] AS sources
FROM cells;

CREATE TABLE linked AS  -- alike besides the draft; the version of the engine and the revision of the model may differ
WITH exact AS (  -- the same settings; of several versions and revisions under one name, the same ones
    SELECT one, other FROM sides one JOIN sides other USING (engine, model, dtype, tp, batch, condition, repeat, settings) WHERE one.is_after AND NOT other.is_after
    QUALIFY one.sources = other.sources OR (count(*) OVER (PARTITION BY one.cell_id) = 1 AND count(*) OVER (PARTITION BY other.cell_id) = 1)
), open_sides AS (
    SELECT * FROM sides ANTI JOIN (SELECT one.cell_id AS cell_id, one.run AS run FROM exact UNION ALL SELECT other.cell_id, other.run FROM exact) USING (run, cell_id)
), named AS (  -- of the others, the draft of the same name
    SELECT one, other FROM open_sides one JOIN open_sides other USING (engine, model, dtype, tp, batch, condition, repeat, draft, method, variant)
    WHERE one.is_after AND NOT other.is_after
), lonely AS (  -- of the rest, those that are the only one on their side: a new draft beside the old one
    SELECT * FROM open_sides
    ANTI JOIN (SELECT one.cell_id AS cell_id, one.run AS run FROM named UNION ALL SELECT other.cell_id, other.run FROM named) USING (run, cell_id)
    WHERE method <> 'none' QUALIFY count(*) OVER (PARTITION BY run, engine, model, dtype, tp, batch, condition, repeat, variant) = 1
)
FROM exact UNION ALL FROM named
UNION ALL
SELECT one, other FROM lonely one JOIN lonely other USING (engine, model, dtype, tp, batch, condition, repeat, variant) WHERE one.is_after AND NOT other.is_after;

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

CREATE MACRO chance_of(ratio, low, high) AS
-- That a ratio so far from 1 comes of noise alone: normal in its logarithm, as wide as its interval; the tail of the normal by a logistic [Bowling 2009].
    CASE WHEN ratio = 1 THEN 1.0 WHEN low = high THEN 0.0
         WHEN low > 0 THEN 2 / (1 + exp(least(1.5976 * abs(3.92 * ln(ratio) / ln(high / low)) + 0.070565 * abs(3.92 * ln(ratio) / ln(high / low)) ** 3, 700))) END;

CREATE TABLE changes AS
-- One row a draft, load and metric that both runs have: `ratio` > 1 is better after. A change counts when its interval excludes 1, every repeat
-- agrees, its cells are valid (repeats that are not are left out where others are), it is larger than `min_change`, and it is beyond what chance does in
-- so many comparisons, which depend on each other: of all that count, one in twenty at most is chance [Benjamini and Yekutieli 2001], so that a run
-- beside its like seldom has one.
WITH labels AS (
    SELECT deployment_id, condition, avg(al) AS al, avg(al_before) AS al_before, any_value(now) AS now, any_value(before) AS before
    FROM judged_pairs SEMI JOIN draft_pairs USING (run, cell_id) GROUP BY ALL
), compared AS (
    SELECT metric, ratio, ci_low, ci_high, verdict, n_prompts, n_repeats, n_left_out, ratio_min, ratio_max, valid, al, al_before, now, before,
           CASE WHEN valid AND n_prompts >= min_prompts_significant THEN chance_of(ratio, ci_low, ci_high) END AS chance, row_number() OVER (ORDER BY chance) AS place, count(chance) OVER () AS n_compared,
           list_sum(list_transform(range(1, n_compared + 1), lambda nth: 1 / nth)) AS dependence
    FROM draft_comparisons JOIN labels USING (deployment_id, condition), thresholds
    WHERE category = 'all' AND metric <> 'tpot'
), judged AS (
    SELECT *, chance <= (SELECT max(chance) FROM compared WHERE chance <= (1 - confidence()) * place / n_compared / dependence) AS is_beyond_chance FROM compared
)
SELECT judged.* EXCLUDE (place, n_compared, dependence),
       coalesce(is_beyond_chance AND verdict = 'slower' AND ratio_max < 1 AND 1 - ratio > min_change, false) AS is_regression,
       coalesce(is_beyond_chance AND verdict = 'faster' AND ratio_min > 1 AND ratio - 1 > min_change, false) AS is_gain
FROM judged, thresholds
UNION ALL BY NAME  -- what was valid before and is no more
SELECT '' AS metric, one AS now, other AS before, true AS is_regression, false AS is_gain FROM linked WHERE other.valid AND NOT one.valid;
