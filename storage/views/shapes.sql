-- Owns what results of a sound measurement look like, whatever the model [SPEED-Bench, its own tables]. Does not own validity: a result that looks
-- odd is not invalid, it is to be explained.

CREATE VIEW shape_checks AS
-- One row a check and what it is of, where the data allows it. `holds` = it looks as it should. Only valid cells and comparisons; invalid cells are left
-- out. 4: equal AL is no equal speed-up, since a step takes as long as its draft does; 5: n-grams lose at large batches, where verifying is not free.
WITH valid_cells AS MATERIALIZED (
    SELECT run, cell_id, deployment_id, condition, model, engine, method, k, draft, batch, workload, isl, entropy, load, concurrency, temperature, repeat, al,
           acceptance_source, json_merge_patch(cell_json, '{"deployment": {"draft": {"k": null, "name": null}}}')::VARCHAR AS any_k,
           json_merge_patch(cell_json, '{"sampling": null}')::VARCHAR AS any_sampling,
           json_merge_patch(cell_json, '{"workload": {"entropy": null, "seed": null}}')::VARCHAR AS any_entropy,
           json_merge_patch(cell_json, '{"load": {"concurrency": null}, "workload": {"limit": null}, "repeat": null}')::VARCHAR AS any_load,
           draft || ', ' || load AS subject
    FROM cells WHERE valid AND method NOT IN ('none', 'synthetic')
), by_k AS (
    SELECT *, lag(k) OVER longer AS shorter_k, lag(al) OVER longer AS shorter_al, lag(k, 2) OVER longer AS shortest_k, lag(al, 2) OVER longer AS shortest_al
    FROM valid_cells WINDOW longer AS (PARTITION BY run, any_k ORDER BY k)
), told AS (
    SELECT run, 1 AS nr, 'categories differ in AL' AS name, subject || ', repeat ' || repeat AS subject, max(categories.al) / min(categories.al) - 1 AS found,
           '>= ' || any_value(min_category_spread) AS expected, found >= any_value(min_category_spread) OR min(categories.al) >= k + 1 AS holds
    FROM valid_cells JOIN (SELECT run, cell_id, al FROM categories) categories USING (run, cell_id), thresholds
    GROUP BY run, cell_id, valid_cells.subject, repeat, k HAVING count(*) > 1
    UNION ALL
    SELECT low.run, 2, 'AL is higher for lower entropy', format('{}, {} input tokens, {} and {}', low.subject, low.isl, low.entropy, high.entropy),
           low.al - high.al, '> 0', low.al > high.al
    FROM valid_cells low JOIN valid_cells high USING (run, any_entropy)
    WHERE list_position(['low', 'mixed', 'high'], low.entropy) < list_position(['low', 'mixed', 'high'], high.entropy)
    UNION ALL
    SELECT run, 3, '1 <= AL <= k + 1', subject || ', repeat ' || repeat, al, '1 to ' || (k + 1), al BETWEEN 1 AND k + 1 FROM valid_cells WHERE al IS NOT NULL
    UNION ALL
    SELECT run, 3, 'AL grows with k', subject || ', from k=' || shorter_k, al - shorter_al, '>= 0', al >= shorter_al FROM by_k WHERE shorter_k < k
    UNION ALL
    SELECT run, 3, 'AL grows less with each further token', subject || ', from k=' || shortest_k,
           (al - shorter_al) / (k - shorter_k) - (shorter_al - shortest_al) / (shorter_k - shortest_k) AS found, '<= 0', found <= 1e-9
    FROM by_k WHERE shortest_k < shorter_k AND shorter_k < k
    UNION ALL
    SELECT one.run, 4, 'at equal AL, speed-ups differ as step times do', one.draft || ' and ' || other.draft || ', ' || one.load,
           (one.ratio / other.ratio) / (other.t_sd_ms / one.t_sd_ms) - 1 AS found, 'within ' || max_projection_error, abs(found) <= max_projection_error
    FROM causes one JOIN causes other USING (run, baseline_deployment_id, condition), thresholds
    WHERE one.valid AND other.valid AND one.draft < other.draft AND one.method <> other.method AND abs(one.al / other.al - 1) <= max_al_shift
    UNION ALL
    SELECT run, 5, 'n-grams lose at large batches', draft || ', ' || load, ratio, '< 1', ratio < 1
    FROM causes, thresholds WHERE valid AND method IN ('ngram', 'suffix') AND load_kind = 'closed' AND least(concurrency, batch) >= high_concurrency
    UNION ALL
    SELECT run, 6, 'hot AL is at most the greedy one', hot.subject || ', temperature ' || hot.temperature, hot.al - cold.al, '<= 0', hot.al <= cold.al
    FROM valid_cells hot JOIN valid_cells cold USING (run, any_sampling) WHERE cold.temperature = 0 AND hot.temperature > 0
    UNION ALL
    SELECT run, 7, 'the best k does not grow with the load', any_value(model) || ' on ' || any_value(engine) || ', ' || leader_method,
           arg_max(leader_k, concurrency) - arg_min(leader_k, concurrency), '<= 0', arg_max(leader_k, concurrency) <= arg_min(leader_k, concurrency)
    FROM best_drafts WHERE metric = 'output_tps' AND load_kind = 'closed' GROUP BY run, baseline_deployment_id, without(condition, '{"load": {"concurrency": null}}'), leader_method
    HAVING count(DISTINCT concurrency) > 1
    UNION ALL
    SELECT run, 8, 'greedy AL does not depend on the load', any_value(draft), max(al) / min(al) - 1, '<= ' || any_value(max_al_shift), max(al) / min(al) - 1 <= any_value(max_al_shift)
    FROM valid_cells, thresholds WHERE temperature = 0 GROUP BY run, any_load HAVING count(DISTINCT concurrency) > 1
    UNION ALL
    SELECT run, 9, 'random tokens are faster than text', draft || ', ' || load || ', ' || isl || ' input tokens', user_tps_inflation, '> 0', user_tps_inflation > 0
    FROM inflations WHERE valid AND method NOT IN ('none', 'synthetic')
    UNION ALL
    SELECT run, 10, 't_ar * AL / t_sd is the measured speed-up', subject || ', repeat ' || repeat, projection_error, 'within ' || max_projection_error,
           abs(projection_error) <= max_projection_error
    FROM valid_cells JOIN (SELECT run, cell_id, projection_error FROM projections WHERE category = 'all') USING (run, cell_id), thresholds WHERE projection_error IS NOT NULL
    UNION ALL
    SELECT run, 11, 'the histogram has every step, and its tokens', subject || ', repeat ' || repeat, n_told - n_steps, '0', n_told = n_steps AND n_tokens = n_steps + n_accepted
    FROM valid_cells JOIN (SELECT run, cell_id, sum(n_steps) AS n_told, sum(n_steps * length) AS n_tokens FROM step_lengths WHERE category = 'all' GROUP BY ALL) USING (run, cell_id)
    JOIN (SELECT run, cell_id, sum(n_steps) AS n_steps, sum(n_accepted) AS n_accepted FROM requests GROUP BY ALL) USING (run, cell_id)
)
SELECT run, nr, name, subject, found::DOUBLE AS found, expected, holds FROM told;
