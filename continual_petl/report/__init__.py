"""Reports: results, growth and dashboards, read only from a run folder."""
