-- Owns what a search left out, and why. Does not own the search, or what it measured.

CREATE VIEW decisions AS
-- One row a cell that a search measured or left out, and an answer. `is_current`: of the search that the run's last command asked for.
SELECT recorded_decisions.*, recorded_decisions.search_id IS NOT DISTINCT FROM recorded_runs.search_id AS is_current
FROM recorded_decisions JOIN recorded_runs USING (run);

CREATE VIEW not_searched AS  -- cells that the current search left out, and that nothing else measured
SELECT * FROM decisions ANTI JOIN shown_cells USING (run, cell_id) WHERE action = 'skip' AND is_current;

CREATE VIEW open_places AS
-- Steps on the way to `places`: baselines beside which the search left drafts out that it does not presume to be slower, or not best, by this metric.
SELECT run, base.deployment_id AS baseline_deployment_id, base.condition, asked.metric,
       count(*) FILTER (asked.metric <> left_out.metric OR presumed NOT IN ('slower', 'not best')) AS n_not_searched
FROM not_searched left_out JOIN shown_cells base USING (run, pair_id), (SELECT unnest(['user_tps', 'output_tps']) AS metric) asked
WHERE base.method = 'none' GROUP BY ALL HAVING n_not_searched > 0;
