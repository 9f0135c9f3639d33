-- Owns the acceptance rate by position. Does not own AL, which `metrics` has.

-- ----------------------------------------------------------------------------------------------------- acceptance (AR)
CREATE VIEW drafting_steps AS  -- how often a step of this shape occurred; the shape is all that acceptance needs
SELECT run, cell_id, category, drafted, accepted, count(*) AS n FROM steps WHERE is_counted GROUP BY ALL;

CREATE VIEW acceptance AS
-- One row a cell and position 1..k, those never reached too. ar_conditional = P(accepted at i | drafted at i, all before accepted),
-- null when never reached; ar_joint = Π_{j≤i} ar_conditional, so that 1 + Σ ar_joint = AL where every step drafts k [SPEED-Bench].
WITH from_steps AS (
    SELECT run, cell_id, position,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position - 1), 0)::BIGINT AS n_reached,
           coalesce(sum(n) FILTER (WHERE drafted >= position AND accepted >= position), 0)::BIGINT AS n_accepted,
           'steps' AS source
    FROM drafting_steps
    JOIN (SELECT run, cell_id, k, max(drafted) AS max_drafted FROM drafting_steps JOIN shown_cells USING (run, cell_id)
          WHERE method <> 'none' GROUP BY ALL) USING (run, cell_id),
         LATERAL unnest(range(1, greatest(k, max_drafted) + 1)) AS positions(position)
    GROUP BY run, cell_id, position
), from_counters AS (  -- vLLM counts acceptances by position; a draft is a step with something drafted
    SELECT run, cell_id, positions.position,
           CASE positions.position WHEN 1 THEN grown(counters_before, counters_after, 'drafts')
                ELSE grown(counters_before, counters_after, 'accepted_at_' || (positions.position - 2)) END::BIGINT AS n_reached,
           grown(counters_before, counters_after, 'accepted_at_' || (positions.position - 1))::BIGINT AS n_accepted,
           'counters' AS source
    FROM shown_cells ANTI JOIN from_steps USING (run, cell_id), LATERAL unnest(range(1, k + 1)) AS positions(position)
    WHERE method <> 'none' AND n_reached IS NOT NULL AND n_accepted IS NOT NULL
), rated AS (
    SELECT *, n_accepted / nullif(n_reached, 0) AS ar_conditional FROM (FROM from_steps UNION ALL BY NAME FROM from_counters)
)
SELECT run, cell_id, position, n_reached, n_accepted, ar_conditional,
       product(ar_conditional) OVER earlier AS known,
       CASE WHEN n_reached > 0 OR known = 0 THEN known END AS ar_joint,  -- after a sure rejection 0; where nothing was drafted, unknown
       source
FROM rated WINDOW earlier AS (PARTITION BY run, cell_id ORDER BY position);
