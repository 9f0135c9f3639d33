-- Owns where speculation stops to pay: the speed-up along concurrency, engine batch, prompt length or rate, and where it passes 1.
-- Does not own the speed-ups.

CREATE MACRO crossing(x0, y0, x1, y1) AS  -- where the line between two points passes 1, both scales logarithmic
    exp(ln(x0) - ln(y0) * (ln(x1) - ln(x0)) / nullif(ln(y1) - ln(y0), 0));

CREATE MACRO without(condition, patch) AS  -- the condition but for the number of prompts, and for what `patch` sets to null
    json_merge_patch(json_merge_patch(condition, '{"workload": {"limit": null}}'), patch)::VARCHAR;

CREATE VIEW curves AS
-- The speed-up along an axis: one row a draft's series, metric, category and value `x` of the axis 'concurrency', 'batch' (of the engine), 'isl'
-- or 'rate'. In a series nothing else differs, but for the number of prompts; along the batch, the concurrency may go with it. Series of one value
-- are there for concurrency only.
WITH facts AS (
    SELECT run, deployment_id, condition, any_value(json_merge_patch(cell_json -> '$.deployment', '{"engine": {"batch": null}}')::VARCHAR) AS unbatched
    FROM shown_cells GROUP BY ALL
), placed AS (
    SELECT draft_speedups.*, unnest([
        {axis: 'concurrency', x: CASE WHEN load_kind = 'closed' THEN concurrency::DOUBLE END, same: deployment_id || without(condition, '{"load": {"concurrency": null}}')},
        {axis: 'batch', x: batch::DOUBLE, same: unbatched || without(condition, '{}')},
        {axis: 'batch', x: CASE WHEN load_kind = 'closed' AND concurrency = batch THEN batch::DOUBLE END,
         same: 'with it' || unbatched || without(condition, '{"load": {"concurrency": null}}')},
        {axis: 'isl', x: nullif(isl, 0)::DOUBLE, same: deployment_id || without(condition, '{"workload": {"isl": null, "split": null}}')},
        {axis: 'rate', x: CASE WHEN load_kind <> 'closed' THEN nullif(rate, 0) END, same: deployment_id || without(condition, '{"load": {"rate": null}}')}
    ], recursive := true)
    FROM draft_speedups JOIN facts USING (run, deployment_id, condition)
)
SELECT run, md5(concat_ws('|', run, axis, same)) AS series, axis, x, metric, category, ratio, ci_low, ci_high, significant, verdict, valid, n_prompts, n_repeats,
       ratio_min, ratio_max, engine, model, method, k, draft, tp, batch, dtype, workload, split, entropy, isl, load_kind, concurrency, rate, temperature, variant,
       deployment_id, baseline_deployment_id, condition
FROM placed WHERE x > 0
QUALIFY axis = 'concurrency' OR count(DISTINCT x) OVER (PARTITION BY run, axis, same) > 1;

CREATE VIEW crossovers AS
-- Where the speed-up passes 1: one row a series, metric, category and crossing; or one row whose `answer` is 'always' (above 1 at every measured
-- value) or 'never'. `x` lies on the line between two measured values (both scales logarithmic); `x_low` and `x_high` are where the bounds of the
-- interval pass 1, null = beyond what was measured. `significant`: the answer holds by values that differ significantly. Only valid comparisons
-- speak; `n_invalid` of the series are left out. A series has at least two values; `x_before` and `x_after` are those around `x`.
WITH points AS MATERIALIZED (
    SELECT * FROM curves WHERE valid AND ratio > 0 QUALIFY count(*) OVER (PARTITION BY series, metric, category) > 1
), invalid AS (
    SELECT series, metric, category, count(*) AS n_invalid FROM curves WHERE NOT valid GROUP BY ALL
), bounds AS (
    SELECT series, metric, category, x, curve.* FROM (
        SELECT series, metric, category, x,
               unnest([{bound: 'ratio', y: ratio}, {bound: 'low', y: coalesce(ci_low, ratio)}, {bound: 'high', y: coalesce(ci_high, ratio)}]) AS curve
        FROM points)
), moves AS (
    SELECT series, metric, category, bound, lag(x) OVER along AS x0, lag(y) OVER along AS y0, x AS x1, y AS y1
    FROM bounds WHERE y > 0 WINDOW along AS (PARTITION BY series, metric, category, bound ORDER BY x)
), crossings AS (
    SELECT *, CASE WHEN y1 > 1 THEN 'rises above 1' ELSE 'falls below 1' END AS answer, crossing(x0, y0, x1, y1) AS x FROM moves WHERE (y0 > 1) <> (y1 > 1)
), found AS (
    SELECT here.series, here.metric, here.category, here.answer, here.x, here.x0, here.x1, max(other.x) FILTER (other.x <= here.x * (1 + 1e-9)) AS x_low,
           min(other.x) FILTER (other.x >= here.x * (1 - 1e-9)) AS x_high
    FROM crossings here LEFT JOIN crossings other ON other.series = here.series AND other.metric = here.metric AND other.category = here.category
     AND other.answer = here.answer AND other.bound <> 'ratio'
    WHERE here.bound = 'ratio' GROUP BY ALL
), summed AS (
    SELECT series, metric, category, any_value(run) AS run, axis, any_value(engine) AS engine, any_value(model) AS model, any_value(method) AS method,
           any_value(k) AS k, any_value(draft) AS draft, any_value(tp) AS tp, any_value(workload) AS workload, any_value(entropy) AS entropy,
           CASE WHEN axis <> 'isl' THEN any_value(isl) END AS isl, CASE WHEN axis <> 'batch' THEN any_value(batch) END AS batch,
           CASE WHEN count(DISTINCT concurrency) = 1 THEN any_value(concurrency) END AS concurrency, any_value(temperature) AS temperature, any_value(variant) AS variant,
           count(*) AS n_points, count(*) FILTER (verdict = 'faster') AS n_faster, count(*) FILTER (verdict = 'slower') AS n_slower,
           min(x) AS x_min, max(x) AS x_max, arg_min(ratio, x) AS ratio_at_min, arg_max(ratio, x) AS ratio_at_max, min(ratio) > 1 AS always,
           any_value(deployment_id) AS deployment_id, any_value(baseline_deployment_id) AS baseline_deployment_id,
           list({x: x, verdict: verdict}) AS verdicts
    FROM points GROUP BY series, metric, category, axis
)
SELECT run, axis, metric, category, engine, model, method, k, draft, tp, batch, workload, entropy, isl, concurrency, temperature, variant,
       coalesce(answer, CASE WHEN always THEN 'always' ELSE 'never' END) AS answer, x, x_low, x_high, x0 AS x_before, x1 AS x_after,
       coalesce(CASE answer WHEN 'falls below 1' THEN len(list_filter(verdicts, lambda point: point.x <= x0 AND point.verdict = 'faster')) > 0
                                                  AND len(list_filter(verdicts, lambda point: point.x >= x1 AND point.verdict = 'slower')) > 0
                            WHEN 'rises above 1' THEN len(list_filter(verdicts, lambda point: point.x <= x0 AND point.verdict = 'slower')) > 0
                                                  AND len(list_filter(verdicts, lambda point: point.x >= x1 AND point.verdict = 'faster')) > 0 END,
                CASE WHEN always THEN n_faster = n_points ELSE n_slower = n_points END) AS significant,
       n_points, n_faster, n_slower, coalesce(n_invalid, 0) AS n_invalid, x_min, x_max, ratio_at_min, ratio_at_max, series, deployment_id, baseline_deployment_id
FROM summed LEFT JOIN found USING (series, metric, category) LEFT JOIN invalid USING (series, metric, category);
