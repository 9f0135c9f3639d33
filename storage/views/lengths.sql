-- Owns acceptance by slices of the answers: how long steps are, by category, turn, place in the output, thoughts and answer.
-- Does not own the acceptance rate by position over a whole cell, which is `acceptance`.

CREATE VIEW step_lengths AS
-- The histogram of counted steps: one row a cell, category ('all' = over all) and length 1..k+1, those that never occurred too.
WITH lengths AS (
    SELECT run, cell_id, unnest(['all', category]) AS category, accepted + 1 AS length, n
    FROM drafting_steps JOIN (SELECT run, cell_id FROM shown_cells WHERE method <> 'none') USING (run, cell_id)
), possible AS (
    SELECT run, cell_id, category, unnest(range(1, greatest(any_value(k) + 1, max(length)) + 1)) AS length
    FROM lengths JOIN (SELECT run, cell_id, k FROM shown_cells) USING (run, cell_id) GROUP BY run, cell_id, category
)
SELECT run, cell_id, category, length, coalesce(sum(n), 0)::BIGINT AS n_steps,
       n_steps / sum(n_steps) OVER (PARTITION BY run, cell_id, category) AS share
FROM possible LEFT JOIN lengths USING (run, cell_id, category, length) GROUP BY run, cell_id, category, length;

CREATE VIEW category_acceptance AS  -- as `acceptance`, one row a cell, category and position; only of engines that tell steps
WITH counted_steps AS (
    SELECT run, cell_id, category, position,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position - 1), 0)::BIGINT AS n_reached,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position), 0)::BIGINT AS n_accepted
    FROM drafting_steps JOIN (SELECT run, cell_id, k FROM shown_cells WHERE method <> 'none') USING (run, cell_id),
         LATERAL unnest(range(1, k + 1)) AS positions(position)
    GROUP BY run, cell_id, category, position
)
SELECT run, cell_id, category, position, n_reached, n_accepted, n_accepted / nullif(n_reached, 0) AS ar_conditional,
       product(ar_conditional) OVER positions_before AS known, CASE WHEN n_reached > 0 OR known = 0 THEN known END AS ar_joint
FROM counted_steps WINDOW positions_before AS (PARTITION BY run, cell_id, category ORDER BY position);

CREATE VIEW acceptance_lengths AS
-- AL by slices, one row a cell, kind and slice: the whole ('all'), a category, a turn (from 0), a bin of the output position
-- (`position_bin` tokens, by the step's first token), or a part ('thinking', 'answer'). `al` is step-weighted; `al_request_mean` is the mean
-- over the requests that have steps in the slice, `al_request_sd` their spread; `al_sd` is the spread of single steps. Only of engines that
-- tell steps.
WITH placed AS (
    SELECT run, cell_id, index, turn, category, length, drafted, is_counted,
           coalesce(sum(length) OVER (PARTITION BY run, cell_id, index, turn ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS n_before
    FROM steps JOIN (SELECT run, cell_id FROM shown_cells WHERE method <> 'none') USING (run, cell_id)
), told AS (  -- one row a request and place, so that little is multiplied below
    SELECT run, cell_id, index, turn, placed.category, n_before // position_bin * position_bin AS place,
           CASE WHEN n_thinking_tokens IS NOT NULL THEN CASE WHEN n_before < n_thinking_tokens THEN 'thinking' ELSE 'answer' END END AS part,
           count(*) FILTER (is_counted) AS n_steps, sum(length) FILTER (is_counted) AS sum_length, sum(length * length) FILTER (is_counted) AS sum_square,
           sum(drafted) FILTER (is_counted) AS sum_drafted, count(*) FILTER (is_counted AND drafted > 0) AS n_drafting,
           count(*) AS n_all_steps, sum(length) AS sum_all_length
    FROM placed JOIN (SELECT run, cell_id, index, turn, n_thinking_tokens FROM requests) USING (run, cell_id, index, turn), thresholds
    GROUP BY ALL
), sliced AS (
    SELECT told.* EXCLUDE (category, place, part), unnest(list_filter([
        {kind: 'all', slice: 'all', first: 0},
        {kind: 'category', slice: category, first: 0},
        {kind: 'turn', slice: turn::VARCHAR, first: turn},
        {kind: 'output_position', slice: place::BIGINT || '-' || (place + position_bin - 1)::BIGINT, first: place::BIGINT},
        {kind: 'part', slice: part, first: (part = 'answer')::BIGINT}], lambda slice: slice.slice IS NOT NULL), recursive := true)
    FROM told, thresholds
), by_request AS (
    SELECT run, cell_id, kind, slice, first, index, turn, sum(n_steps) AS n_steps, sum(sum_length) AS sum_length, sum(sum_square) AS sum_square,
           sum(sum_drafted) AS sum_drafted, sum(n_drafting) AS n_drafting, sum(n_all_steps) AS n_all_steps, sum(sum_all_length) AS sum_all_length
    FROM sliced GROUP BY ALL
)
SELECT run, cell_id, kind, slice, first, count(*) FILTER (n_steps > 0) AS n_requests, sum(n_steps)::BIGINT AS n_steps,
       sum(sum_length) / nullif(sum(n_steps), 0) AS al, sqrt(greatest(sum(sum_square) / nullif(sum(n_steps), 0) - al * al, 0)) AS al_sd,
       avg(sum_length / nullif(n_steps, 0)) AS al_request_mean, stddev_samp(sum_length / nullif(n_steps, 0)) AS al_request_sd,
       sum(sum_all_length) / nullif(sum(n_all_steps), 0) AS al_untrimmed,
       1 + (sum(sum_length) - sum(n_steps)) / nullif(sum(n_drafting), 0) AS al_drafted,
       (sum(sum_length) - sum(n_steps)) / nullif(sum(sum_drafted), 0) AS draft_efficiency
FROM by_request GROUP BY run, cell_id, kind, slice, first;
