-- Owns what a million output tokens cost: GPU-seconds, CPU-seconds, money, energy. Does not own prices: a run's configuration names one.

CREATE VIEW costs AS
-- One row a measured cell: what its duration took, and what that is for a million answered output tokens; the engine's start is not in it. GPUs are
-- all that the session held. `cpu_s` = mean utilisation of the node's CPUs x their number x duration: whatever ran there is in it. Energy is that
-- of the GPUs that report power, mean power x duration. `money` is null without `cluster.gpu_hour_price`, and without GPUs. A `..._ratio` is
-- of the paired baseline's cost per token: below 1 = cheaper with speculation.
WITH told AS (
    SELECT run, cell_id, device, count(*) AS n_samples, avg(utilisation) AS utilisation, 
           coalesce(1e9 * (max(energy_j) - min(energy_j)) / nullif(max(t_ns) - min(t_ns), 0), avg(power_w)) AS power_w  -- by its meter, if it has one
    FROM telemetry GROUP BY ALL
), devices AS (
    SELECT run, cell_id, sum(n_samples) AS n_samples, any_value(utilisation) FILTER (device = 'cpu') AS cpu_utilisation,
           avg(utilisation) FILTER (device <> 'cpu') AS gpu_utilisation, sum(power_w) FILTER (device <> 'cpu') AS power_w,
           count(power_w) FILTER (device <> 'cpu') AS n_powered
    FROM told GROUP BY ALL
), hosts AS (
    SELECT run, session_id, nullif(json_array_length(gpus_json), 0) AS n_gpus, (host_json ->> '$.cpus')::INT AS n_cpus FROM sessions
), judged AS MATERIALIZED (
    SELECT run, cell_id, status, valid, engine, model, method, k, draft, tp, batch, workload, isl, load, concurrency, rate, temperature, variant, repeat,
           duration_s, n_output_tokens, session_id, deployment_id, condition FROM cells WHERE status = 'ok'
), spent AS (
    SELECT judged.*, n_gpus, duration_s * n_gpus AS gpu_s, duration_s * n_cpus * cpu_utilisation AS cpu_s, gpu_utilisation,
           CASE WHEN n_powered = n_gpus THEN power_w END AS power_w, CASE WHEN n_powered = n_gpus THEN power_w * duration_s END AS energy_j,
           gpu_s / 3600 * gpu_hour_price AS money,
           1e6 / nullif(n_output_tokens, 0) AS per_million
    FROM judged LEFT JOIN hosts USING (run, session_id) LEFT JOIN devices USING (run, cell_id)
    LEFT JOIN (SELECT run, gpu_hour_price FROM recorded_runs) USING (run)
), priced AS (
    SELECT * EXCLUDE (per_million), gpu_s * per_million AS gpu_s_per_mtok, cpu_s * per_million AS cpu_s_per_mtok, money * per_million AS money_per_mtok,
           energy_j * per_million AS joules_per_mtok
    FROM spent
)
SELECT priced.*, base.cell_id AS baseline_cell_id, priced.gpu_s_per_mtok / nullif(base.gpu_s_per_mtok, 0) AS gpu_s_ratio,
       priced.cpu_s_per_mtok / nullif(base.cpu_s_per_mtok, 0) AS cpu_s_ratio,
       priced.money_per_mtok / nullif(base.money_per_mtok, 0) AS money_ratio, priced.joules_per_mtok / nullif(base.joules_per_mtok, 0) AS joules_ratio
FROM priced LEFT JOIN (SELECT run, cell_id, baseline_cell_id FROM pairs) paired USING (run, cell_id)
LEFT JOIN priced base ON base.run = priced.run AND base.cell_id = paired.baseline_cell_id;

CREATE VIEW draft_costs AS  -- one row a deployment and condition: means over its valid repeats, with their spread; `n` says how many
SELECT run, engine, model, method, k, draft, tp, batch, workload, isl, load, concurrency, rate, temperature, variant, deployment_id, condition,
       count(*) FILTER (valid) AS n, count(*) FILTER (NOT valid) AS n_invalid,
       avg(gpu_s_per_mtok) FILTER (valid) AS gpu_s_per_mtok, avg(cpu_s_per_mtok) FILTER (valid) AS cpu_s_per_mtok,
       avg(money_per_mtok) FILTER (valid) AS money_per_mtok, avg(joules_per_mtok) FILTER (valid) AS joules_per_mtok,
       stddev_samp(coalesce(gpu_s_per_mtok, cpu_s_per_mtok)) FILTER (valid) AS device_s_per_mtok_sd,
       stddev_samp(money_per_mtok) FILTER (valid) AS money_per_mtok_sd, stddev_samp(joules_per_mtok) FILTER (valid) AS joules_per_mtok_sd
FROM costs GROUP BY ALL;
