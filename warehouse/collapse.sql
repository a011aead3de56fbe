-- One row per iteration and purpose: everything that moves when a run goes wrong.

CREATE OR REPLACE VIEW iteration_stats AS
FROM rolled_iteration_stats() UNION ALL BY NAME FROM stats_of('fresh_samples');
